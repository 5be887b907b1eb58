"""From a study to runs: the order in which a config's layers come, and the study's file."""

import dataclasses
import json

import a_study
import pytest
import tiny

from scalelab.config import cli, files
from scalelab.config import pretraining as config_lib
from scalelab.lab.load import study_runs
from scalelab.records import run_files, study_file
from scalelab.studies import expand, finetunings, jobs, progress, spec


def by_name(made: spec.StudySpec, path) -> dict[str, expand.PlannedRun]:
    return {run.name: run for run in expand.expand_runs(made)}


def test_the_full_thesis_is_the_protocol(tmp_path) -> None:
    """A run of thesis_7_5_1 differs in nothing from what configs/pretrain.py trains."""
    values = tiny.config_module("studies/thesis_7_5_1").get_config("corpus=wikitext:/w").to_dict()
    runs = by_name(spec.resolve(values), tmp_path)
    assert len(runs) == 27  # 3 styles x (5 widths + 5 depths, one shape being in both)
    for system in ("bert", "gpt2", "roberta"):
        expected = config_lib.resolve(
            tiny.values(f"system={system},shape=2x128x36,corpus=wikitext:/w")
        )
        found = runs[f"{system}-2x128x36-seed0"].config
        rate = 0.10262 if system == "bert" else 0.08713  # Table 7.1
        assert found.long.example_rate == rate
        assert dataclasses.replace(found, long=expected.long) == expected


def test_layers(tmp_path) -> None:
    """Declared differences, then fields, then a system's, then the variant's; a factor
    multiplies."""
    made = a_study.make(
        fields=("optim.learning_rate=1e-2", "mask_rate=0.2"),
        system_fields={"gpt2": ("optim.learning_rate=3e-2",)},
        variants={"default": (), "half": ("optim.learning_rate=x0.5", "short.batch_size=x0.5")},
        stages={"main": a_study.stage(variants=("default", "half"))},
        seeds=2,
    )
    runs = by_name(made, tmp_path)
    assert set(runs) == {
        f"{s}-2x8x1{v}-seed{k}" for s in ("bert", "gpt2") for v in ("", "-half") for k in (0, 1)
    }
    assert runs["bert-2x8x1-seed0"].config.optim.learning_rate == 1e-2
    assert runs["gpt2-2x8x1-seed1"].config.optim.learning_rate == 3e-2
    half = runs["gpt2-2x8x1-half-seed1"].config
    assert half.optim.learning_rate == 1.5e-2
    assert half.short.batch_size == 4
    assert half.seed == 1
    assert (half.objective, half.mask_rate) == ("clm", 0.2)
    assert runs["bert-2x8x1-seed0"].config.data.format == "segment_pair"


def test_a_variant_of_the_fine_tuning(tmp_path) -> None:
    """It leaves the pre-training alone; unknown fields and equal arms are refused."""

    def made(*lines: str) -> spec.StudySpec:
        variants = {"default": (), "a": ("finetune.epochs=5",), "b": lines}
        stage = a_study.stage(systems=("bert",), variants=("a", "b"))
        return a_study.make(variants=variants, stages={"main": stage}, finetune__tasks=("wnli",))

    study = made("finetune.epochs=7", "mask_rate=0.4")
    a, b = expand.expand_runs(study)
    assert (a.config.mask_rate, b.config.mask_rate) == (0.15, 0.4)
    tuned = finetunings.tune_variant(study.finetune, study.variants["b"])
    assert finetunings.config_values(tuned, "wnli")["epochs"] == 7
    with pytest.raises(ValueError, match="'a' and 'b' of bert 2x8x1 have one config"):
        expand.expand_runs(made("finetune.epochs=5"))
    wrong = made("finetune.epohcs=7")
    with pytest.raises(ValueError, match="'epohcs'.*'epochs'"):
        expand.write(wrong, expand.expand_runs(wrong), tmp_path, "")
    assert not list(tmp_path.iterdir())


def test_stages_keep_the_studys_order(tmp_path) -> None:
    """A ConfigDict sorts them by name. A run of two stages belongs to the first."""
    stages = {
        "zero": a_study.stage(systems=("bert",), shapes=("2x8x1", "2x10x1", "2x12x1")),
        "up": a_study.stage(systems=("bert",), shapes=("2x12x1", "2x20x1")),
        "before": a_study.stage(systems=("bert",), shapes=("2x64x2",)),
    }
    path = a_study.config_file(tmp_path / "staged.py", stages=stages)
    values = files.load(path).get_config().to_dict()
    assert list(values["stages"]) == ["before", "up", "zero"]
    made = spec.resolve(values)
    assert [name for name, _ in made.stages.items()] == ["zero", "up", "before"]
    found = expand.expand_runs(made)
    assert [run.stage for run in found] == ["zero"] * 3 + ["up", "before"]
    expand.write(made, found, tmp_path, "")
    facts = json.loads((tmp_path / "studies/two.json").read_text())
    assert list(facts["stages"]) == ["zero", "up", "before"]
    assert [run["stage"] for run in facts["runs"]] == [run.stage for run in found]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((), "stage_order .*: a, b"),
        (("b",), r"stage_order \('b',\): "),
    ],
)
def test_an_order_that_is_not_of_all_stages(order: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_study.make(stages={"a": a_study.stage(), "b": a_study.stage()}, stage_order=order)


def test_the_studys_clock_wins_over_a_departure(tmp_path) -> None:
    """BERT declares six epochs; in a study of steps all systems take as many steps."""
    runs = by_name(a_study.make(), tmp_path)
    assert runs["bert-2x8x1-seed0"].config.optim.total_epochs is None
    assert runs["bert-2x8x1-seed0"].config.optim.total_steps == 6


def test_an_unknown_field_names_the_run(tmp_path) -> None:
    made = a_study.make(fields=("optim.lerning_rate=1",))
    with pytest.raises(ValueError, match=r"run bert-2x8x1-seed0: .*'optim.learning_rate'"):
        expand.expand_runs(made)


def test_a_changed_primary_score_is_kept_in_the_file(tmp_path) -> None:
    """Once runs have finished; a change before that is none."""

    def plan(primary: str | None) -> study_file.StudyFile:
        made = a_study.make(primary=primary)
        expand.write(made, expand.expand_runs(made), tmp_path, "")
        return study_file.read(tmp_path / "studies/two.json")

    assert plan("loss").primary == "loss"
    assert (plan("seconds").primary, plan("seconds").earlier_primary) == ("seconds", ())
    (tmp_path / "runs/bert-2x8x1-seed0").mkdir(parents=True)
    config = expand.expand_runs(a_study.make())[0].config
    (tmp_path / "runs/bert-2x8x1-seed0/config.json").write_text(
        json.dumps(dataclasses.asdict(config))
    )
    (tmp_path / "runs/bert-2x8x1-seed0/result.json").write_text("{}")
    assert plan("seconds").earlier_primary == ()
    assert plan("loss").earlier_primary == (("seconds", 1),)
    assert plan("loss").earlier_primary == (("seconds", 1),)  # planned again
    assert plan(None).earlier_primary == (("seconds", 1), ("loss", 1))


def test_arms_of_a_grid_are_shown_by_their_values(tmp_path) -> None:
    """In a system that has them; a variant by hand keeps its name, and folders keep theirs."""
    arms = {"default": (), "mask_rate_0p4": ("mask_rate=0.4",), "half": ("mask_rate=x0.5",)}
    stages = {
        "bert": a_study.stage(systems=("bert",), variants=tuple(arms)),
        "gpt2": a_study.stage(systems=("gpt2",)),
    }
    claims = (("bert mask_rate=0.4 > mask_rate=0.15", "seconds"),)
    made = a_study.make(variants=arms, stages=stages, hypotheses=claims)
    planned = expand.expand_runs(made)
    expand.write(made, planned, tmp_path, "")
    now = progress.Status(*jobs.read(tmp_path, None), (), {})
    values = ("mask_rate=0.15", "mask_rate=0.4")
    labels = [*(f"bert 2x8x1 {x}" for x in values), "bert 2x8x1 half", "gpt2 2x8x1"]
    assert [row.label for row in now.study.points] == labels
    table = progress.describe_runs(now, {})
    assert [line.split("  ")[0] for line in table.splitlines()[2:]] == [
        *(f"bert 2x8x1 {x} seed0" for x in values), "bert-2x8x1-half-seed0", "gpt2-2x8x1-seed0"
    ]  # fmt: skip
    assert {run.name for run in planned} >= {"bert-2x8x1-seed0", "bert-2x8x1-mask_rate_0p4-seed0"}


def test_the_old_name_of_the_model_is_read(tmp_path, capsys) -> None:
    """In a user's config and flag, with a warning; in older files, without."""
    narrow = {"default": (), "narrow": ("net.width=4",), "net": ("data.corpus=net.txt",)}
    made = a_study.make(variants=narrow, stages={"main": a_study.stage(variants=tuple(narrow))})
    assert "warning: config.net is now config.model" in capsys.readouterr().err
    assert made.variants == narrow | {"narrow": ("model.width=4",)}
    assert config_lib.rename("net.txt") == "net.txt"
    given = cli.Parser("x", config=config_lib.Config).parse_args(["--config.net.width=8"])
    assert given.fields == {"model.width": "8"}
    assert "warning: config.net.width is now config.model.width" in capsys.readouterr().err
    old = dataclasses.asdict(made.pretrain)
    old["net"] = old.pop("model")
    (tmp_path / "config.json").write_text(json.dumps(old))
    assert run_files.read_config(tmp_path)["model"] == old["net"]


def test_the_old_name_of_the_default_is_read(tmp_path, capsys) -> None:
    """In a user's config, with a warning; in an older file, without."""
    made = a_study.make(
        variants={"baseline": (), "half": ("mask_rate=x0.5",)},
        stages={"main": a_study.stage(variants=("baseline", "half"))},
        rows={"all": {"title": "", "stages": (), "shapes": (), "variants": ("baseline",)}},
        hypotheses=(("half > baseline", "loss"),),
    )
    assert "warning: the variant 'baseline' is now 'default'" in capsys.readouterr().err
    assert made.stages["main"].variants == ("default", "half") == tuple(made.variants)
    assert made.rows["all"].variants == ("default",) and made.hypotheses[0][0] == "half > default"
    expand.write(made, planned := expand.expand_runs(made), tmp_path, "")
    path = tmp_path / "studies/two.json"
    path.write_text(path.read_text().replace('"default"', '"baseline"'))
    (tmp_path / "runs" / planned[0].name).mkdir(parents=True)  # begun: a mere plan is replaced
    study = study_runs.read(tmp_path)
    assert {run.variant for run in study.runs} == {"default", "half"} == set(study.facts.variants)
    assert {run.name for run in study.runs} == {run.name for run in planned}
    expand.write(made, planned, tmp_path, "")  # nothing has changed
    assert '"baseline"' in path.read_text() and not capsys.readouterr().err


def test_the_file_is_read_back(tmp_path) -> None:
    made = a_study.make(seeds=2)
    planned = expand.expand_runs(made)
    expand.write(made, planned, tmp_path, "a command")
    study = study_runs.read(tmp_path)
    assert [p.label for p in study.points] == ["bert 2x8x1", "gpt2 2x8x1"]
    assert [r.name for r in study.runs][:2] == ["bert-2x8x1-seed0", "bert-2x8x1-seed1"]
    assert study.facts.departures["bert"][0].field == "tokenizer.kind"
    configs = {run.name: dataclasses.asdict(run.config) for run in planned}
    assert all(run.config == json.loads(json.dumps(configs[run.name])) for run in study.runs)
    assert not any(run.finished for run in study.runs)
