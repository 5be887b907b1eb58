"""The eval binaries as a user starts them, on an invented GLUE folder."""

import json
import pathlib
import re
import shutil
from collections.abc import Callable

import glue_folder
import in_process
import pytest

from scalelab.config.fields import flatten
from scalelab.eval import glue, program
from scalelab.tasks import batches
from scalelab.tasks.glue import GLUE

Start = Callable[..., tuple[int, str, str]]


@pytest.fixture
def start(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
    cache_dir: pathlib.Path,
) -> Start:
    """start(program, *flags) -> exit code, stdout, stderr."""
    monkeypatch.setattr(batches, "BUCKETS", (64,))
    data = glue_folder.write(tmp_path / "glue")

    def run(name: str, *flags: str) -> tuple[int, str, str]:
        small = [
            f"--workdir={tmp_path}/work", f"--data={data}", "--config.batch_size=2",
            "--config.epochs=1", "--config.max_len=64", "--config.machine.compile_cache_dir=None",
            f"--config.machine.cache_dir={cache_dir}", "--config.machine.eval_batch_size=4",
        ]  # fmt: skip
        used = (glue, []) if name == "glue" else (program, [name])
        return in_process.code(used[0], [*used[1], *small, *flags]), *capsys.readouterr()

    return run


def lines(path: pathlib.Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.mark.slow
def test_glue_from_beginning_to_submission(start: Start, pretrained_runs, tmp_path) -> None:
    flags = [f"--init={pretrained_runs('bert')}", "--tasks=rte,mnli", "--mnli_first"]
    code, out, errors = start("glue", *flags)
    assert code == 0, errors
    work = tmp_path / "work"
    for word in ("MNLI", "RTE", "mnli-first", "3 of 392,702"):
        assert word in out, word
    assert (work / "glue.md").read_text() and (work / "glue.csv").read_text()
    results = {
        str(p.relative_to(work)): json.loads(p.read_text())
        for p in sorted(work.rglob("result.json"))
    }
    assert set(results) == {
        f"{scratch}{task}/seed0/result.json"
        for scratch in ("", "scratch/")
        for task in ("mnli", "rte")
    }
    rte, mnli = results["rte/seed0/result.json"], results["mnli/seed0/result.json"]
    assert rte["mnli_first"] and not mnli["mnli_first"]
    assert set(mnli["eval"]) == {"matched", "mismatched"} and mnli["steps"] == 2
    assert results["scratch/rte/seed0/result.json"]["init"] == "none"
    assert not results["scratch/rte/seed0/result.json"]["mnli_first"]

    def changed() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in work.rglob("metrics.jsonl")}

    before = changed()
    code, out, errors = start("glue", *flags, "--submit")
    assert code == 0, errors
    assert "From scratch" in out and not (work / "scratch/rte/submission").exists()
    assert changed() == before and "absent: " in out and "CoLA.tsv" in out
    for name, labels in (("RTE.tsv", glue_folder.NLI), ("MNLI-m.tsv", None), ("AX.tsv", None)):
        header, *rows = lines(work / "submission" / name)
        assert header == "index\tprediction" and len(rows) == 3
        if labels:
            assert {row.split("\t")[1] for row in rows} <= set(labels)
    assert (work / "submission.zip").is_file()
    (work / "rte/seed0/predictions.tsv").unlink()
    code, out, errors = start("glue", *flags, "--eval_only", "--baseline=none")
    assert code == 0, errors
    assert (work / "rte/seed0/predictions.tsv").is_file() and changed() == before


def test_what_has_failed_is_not_submitted(start: Start, pretrained_runs, tmp_path) -> None:
    flags = [f"--init={pretrained_runs('bert')}", "--submit", "--config.optim.learning_rate=1e30"]
    (tmp_path / "work/submission").mkdir(parents=True)
    (tmp_path / "work/submission/RTE.tsv").write_text("of an earlier start")
    code, out, errors = start("rte", *flags)
    assert code == 1 and re.search("^error: .*rte seed 0.*not finite", errors.splitlines()[-1])
    assert "RTE: every seed" in out
    assert "seed 0 failed" in out
    assert not list((tmp_path / "work").rglob("RTE.tsv"))
    assert not (tmp_path / "work/submission.zip").exists()


def test_a_grid_takes_the_best_point(start: Start, pretrained_runs, tmp_path, monkeypatch) -> None:
    from scalelab.tasks import recipes

    monkeypatch.setitem(
        recipes.RECIPES,
        "turc",
        recipes.Recipe("a test", grid={"optim.learning_rate": (1e-3, 1e-5)}),
    )
    flags = [f"--init={pretrained_runs('bert')}", "--recipe=turc", "--submit"]
    code, out, errors = start("wnli", *flags)
    assert code == 0, errors
    assert re.search("WNLI.tsv .*3 .*146", out)
    assert (tmp_path / "work/submission.zip").is_file()
    made = json.loads((tmp_path / "work/grid.json").read_text())
    assert len(made["points"]) == 2
    best = max(made["points"], key=lambda point: point["score"])
    assert made["chosen"] == best["fields"]
    result = json.loads((tmp_path / "work/seed0/result.json").read_text())
    assert result["chosen"] == best["fields"]
    assert "Grid: " in out
    assert result["settings"]["learning_rate"] == best["fields"]["optim.learning_rate"]
    assert result["recipe"] == "turc"
    config = json.loads((tmp_path / "work/seed0/config.json").read_text())
    recorded = {name.removeprefix("optim."): value for name, value in flatten(config).items()}
    assert all(recorded[name] == value for name, value in result["settings"].items())
    assert (tmp_path / "work/seed0/curves.png").is_file()


R, TWO = "--init=RUN", "--tasks=wnli,rte"


def test_a_config_of_a_pretraining_is_refused(capsys) -> None:
    assert in_process.code(program, ["rte", "--config=pretrain", "--init=x", "--workdir=y"]) == 2
    assert "not of a fine-tuning" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "flags", "message"), [
    ("rte", "", "--init is missing"),
    ("rte", "--init=none", "--like"),
    ("rte", f"{R} --config.epocs=2", "'epocs'.*'epochs'"),
    ("rte", f"{R} --recipe=turk", "'turk'.*'turc'"),
    ("rte", f"{R} --recipe=turc --config=configs/finetune.py", "--recipe"),
    ("rte", f"{R} --config.recipe=small", "--recipe=NAME"),
    ("rte", f"{R} --per_task=rte.recipe=turc", "--recipe=NAME"),
    ("rte", f"{R} --per_task=rte=2", "task.field=value"),
    ("rte", f"{R} --per_task=mrpc.epochs=2", "mrpc.* rte"),
    ("rte", f"{R} --eval_only", "finished"),
    ("rte", f"{R} --data=nowhere", "nowhere"),
    ("rte", f"{R} --seeds=0", "seeds"),
    ("pos", R, "POS: expected the folder .*ud-english-ewt"),
    ("glue", f"{R} --tasks=rte,colla", "'colla'.*'cola'"),
    ("glue", f"{R} --tasks=", "--tasks is empty"),
    ("glue", f"{R} --tasks=rte --mnli_first", "mnli"),
    ("glue", f"{R} --tasks=rte,mnli --config.sharing=hard --mnli_first", "--mnli_first"),
    ("glue", f"{R} {TWO} --config.sharing=hard --recipe=turc", "grid.*learning_rate=0.0003"),
    ("glue", f"{R} {TWO} --config.sharing=hard --per_task=rte.sharing=None", "equal"),
    ("rte", f"{R} --config.sharing=hard", "eval.glue"),
    ("glue", "--init=none --like=RUN --tasks=rte,mnli --mnli_first", "--init=none"),
    # A fault of a later task is named before the first is trained.
    ("glue", f"{R} {TWO} --per_task=rte.epocs=2 --per_task=rte.epochs=1", "'epocs'"),
    ("glue", f"{R} {TWO} --per_task=rte.feature_layers=4", "RTE: config.feature_layers = 4"),
    ("glue", f"{R} {TWO} --per_task=rte.batch_size=4", "RTE: .* 3 .* --config.batch_size=3"),
    ("glue", f"{R} {TWO} --data=DATA", "RTE: .*folder"),
])  # fmt: skip
def test_what_is_refused(
    start: Start, pretrained_runs, tmp_path, name: str, flags: str, message: str
) -> None:
    run = str(pretrained_runs("bert"))
    part = tmp_path / "part"
    shutil.copytree(tmp_path / "glue/WNLI", part / "WNLI")
    given = (flag.replace("RUN", run).replace("DATA", str(part)) for flag in flags.split())
    code, _, errors = start(name, *given)
    assert code == 2
    assert errors.count("\n") <= 2 and "Traceback" not in errors
    assert re.search(message, errors), errors
    assert not list((tmp_path / "work").rglob("result.json"))


def test_probes_are_tasks_that_must_be_named() -> None:
    assert set(glue.ORDER) == {task.name for task in GLUE}
    assert glue.parser().parse_args([]).tasks == list(glue.ORDER)
    names = [task.name for task in glue.choose(["swapped_words", "rte", "same_document", "wnli"])]
    assert names == ["wnli", "rte", "same_document", "swapped_words"]


def test_tasks_at_once_from_beginning_to_submission(
    start: Start, pretrained_runs, tmp_path
) -> None:
    """The table and the submission are those of tasks alone."""
    flags = [f"--init={pretrained_runs('bert')}", TWO, "--config.sharing=hard", "--baseline=none"]
    code, out, errors = start("glue", *flags, "--submit")
    assert code == 0, errors
    assert "RTE" in out and "sharing hard, sharing_tasks wnli,rte" in out
    assert (tmp_path / "work/submission.zip").is_file()
    paths = [tmp_path / f"work/{name}/seed0/result.json" for name in ("rte", "wnli")]
    before = [path.stat().st_mtime_ns for path in paths]
    code, out, errors = start("glue", *flags)
    assert code == 0 and "finished already" in out
    code, out, errors = start("glue", *flags, "--eval_only")
    assert code == 0, errors
    assert [path.stat().st_mtime_ns for path in paths] == before
