"""One folder for several studies, or for several starts of one: shared, or refused at once."""

import json

import a_study
import pytest
import test_jobs
from test_jobs import planned as write

from scalelab.lab.load import study_runs
from scalelab.studies import jobs

BERT = "bert-2x8x1-seed0"


SECONDS = {
    "name": "seconds", "matched": "secs", "pretrain__optim__total_steps": None,
    "pretrain__optim__warmup_steps": None, "pretrain__optim__total_secs": 5.0,
    "pretrain__optim__warmup_secs": 1.0,
}  # fmt: skip


def test_equal_seconds_and_equal_steps_are_not_mixed(tmp_path) -> None:
    """Two studies whose runs have the same names, but a budget of another clock."""
    write(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=rf"(?s)two.json plans {BERT}.*optim.total_secs: None"):
        write(tmp_path, **SECONDS)
    assert sorted(tmp_path.rglob("*")) == before  # refused before anything is written
    write(tmp_path / "another", **SECONDS)


OTHER_RUNS = {"main": a_study.stage(systems=("roberta",))}


@pytest.mark.parametrize(("given", "changes", "message"), [
    ({}, {"pretrain__optim__learning_rate": 0.5}, r"learning_rate: 0\.\d+ -> 0\.5"),
    ({}, {"fields": ("optim.learning_rate=0.5",)}, "learning_rate"),
    ({}, {"pretrain__data__corpus": "text:x"}, "data.corpus: 'builtin' -> 'text:x'"),
    ({}, {}, ""),
    ({}, {"pretrain__seed": 3, "pretrain__model__width": 16, "seeds": 3}, ""),
    ({"variants": {"baseline": (), "fast": ("optim.learning_rate=x2",)}},
     {"pretrain__optim__learning_rate": 0.5}, ""),  # a study of this field
    ({"allow": ("mask_rate",)}, {"pretrain__mask_rate": 0.4}, ""),
])  # fmt: skip
def test_a_study_of_another_base_config_is_refused(given, changes, message, tmp_path) -> None:
    """Though no run of it has the name of a run that is there."""
    write(tmp_path, **given)
    before = sorted(tmp_path.rglob("*"))
    if not message:
        write(tmp_path, name="another", stages=OTHER_RUNS, **changes)
        return
    with pytest.raises(ValueError, match=rf"(?s)two.json has another base.*--workdir.*{message}"):
        write(tmp_path, name="another", stages=OTHER_RUNS, **changes)
    assert sorted(tmp_path.rglob("*")) == before
    path = tmp_path / "studies/two.json"  # an older file does not say its base config
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base": None}))
    write(tmp_path, name="another", stages=OTHER_RUNS, **changes)


def test_studies_that_want_the_same_run_share_it(tmp_path) -> None:
    fields = dict(finetune__tasks=("wnli",), finetune__fields=("epochs=1",))
    write(tmp_path, **fields)
    write(tmp_path, name="another", stages={"main": a_study.stage(systems=("bert",))}, **fields)
    test_jobs.finish(tmp_path, BERT)
    states = [
        {job.name: job.state for job in jobs.read(tmp_path, name)[1]}[f"{BERT}.pretrain"]
        for name in ("two", "another")
    ]
    assert states == [jobs.DONE, jobs.DONE]
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finetune__fields": ("epochs=2",)}, "epochs: 1.0 -> 2.0"),
        ({"finetune__recipe": "thesis"}, "recipe: 'small' -> 'thesis'"),
        ({"pretrain__mask_rate": 0.3}, "mask_rate: 0.15 -> 0.3"),
    ],
)
@pytest.mark.parametrize("name", ["two", "another"])
def test_another_adaptation_is_refused(tmp_path, name, changes, message) -> None:
    """Whether it is the same study started again, or another one with the same runs."""
    given = dict(finetune__tasks=("wnli",), finetune__fields=("epochs=1",))
    write(tmp_path, **given)
    (tmp_path / "runs" / BERT).mkdir(parents=True)  # begun: a mere plan is replaced
    with pytest.raises(ValueError, match=f"(?s)--workdir.*{message}"):
        write(tmp_path, name=name, **given | changes)


def test_what_may_be_added(tmp_path) -> None:
    """Tasks, seeds of both kinds, systems and shapes; each task as it was planned, for all runs."""
    given = dict(finetune__tasks=("wnli",), finetune__fields=("epochs=1", "rte.epochs=2"))
    write(tmp_path, **given)
    more = {"finetune__tasks": ("wnli", "rte"), "finetune__seeds": 3, "seeds": 2}
    stage = a_study.stage(systems=("bert", "gpt2", "roberta"), shapes=("2x8x1", "2x8x2"))
    write(tmp_path, **given | more, stages={"main": stage})
    facts = study_runs.read(tmp_path).facts
    assert [facts.adaptation[task]["epochs"] for task in ("wnli", "rte")] == [1.0, 2.0]
    assert len(facts.runs) == 12


def test_a_run_that_is_there_with_another_config(tmp_path) -> None:
    """Though no study of the folder says so, as its file was deleted."""
    write(tmp_path, pretrain__mask_rate=0.3)
    planned = study_runs.read(tmp_path).runs[0]
    planned.folder.mkdir(parents=True)
    (planned.folder / "config.json").write_text(json.dumps(planned.config))
    (tmp_path / "studies/two.json").unlink()
    with pytest.raises(ValueError, match=rf"(?s){BERT} is there.*mask_rate"):
        write(tmp_path)
