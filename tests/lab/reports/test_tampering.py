"""Folders that were edited by hand, cut off or lost in part: named, or refused in one message.

Never a traceback, and never a number that nothing vouches for: a run that is not whole is left out
of every score and named below the tables, with the rest of the report there.
"""

import json
import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import reported_study

from scalelab.lab.show import report

RUN = "bert-2x16x2-seed0"
TASK = f"{RUN}/tasks/qnli/seed0"
STUDY = "../studies/invented"
GONE = object()
DEPARTURE = {"field": "seed", "value": 7, "source": ""}
PHASE = {"max_len": 32, "examples": 5, "tokens": 160}
DAMAGED = rf"1 of 4 runs are damaged: {RUN}: "
BROKEN = rf"1 of 4 fine-tunings failed: runs/{TASK}: .*damaged: .*"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> pathlib.Path:
    return reported_study.write(
        tmp_path_factory.mktemp("whole"), shapes=((2, 16, 2),), tasks=("qnli",),
        finetune_seeds=1, tables=["data", "large", "grid", "cost"], figures=[],
    )  # fmt: skip


@pytest.fixture
def workdir(whole, tmp_path) -> pathlib.Path:
    """A copy that a test may spoil."""
    return pathlib.Path(shutil.copytree(whole, tmp_path / "w"))


def said(workdir: pathlib.Path) -> str:
    return report.make(workdir).with_name("report.md").read_text()


def row(text: str, table: str, system: str = "bert") -> str:
    """A row of a table in report.md."""
    part = text.partition(f"### {table}")[2].partition("\n- ")[0]
    return next(line for line in part.splitlines() if line.startswith(f"| {system} "))


def text_of(value: str) -> Callable[[str], str]:
    return lambda _: value


def field(name: str, value: Any) -> Callable[[str], str]:
    """Sets a field by its path, or takes it away."""

    def change(text: str) -> str:
        content = json.loads(text)
        *groups, last = name.split("/")
        group = content
        for part in groups:
            group = group[int(part) if isinstance(group, list) else part]
        if value is GONE:
            del group[last]
        else:
            group[last] = value
        return json.dumps(content)

    return change


def every(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def no_long_validation(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if '"eval/max_len": 64' not in line)


def middle_cut_off(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:3], lines[3][:20] + "\n", *lines[4:]])


def test_the_whole_one_is_whole(workdir) -> None:
    text = said(workdir)
    assert "damaged" not in text and "Could not be used" not in text
    assert "| 2 |" in row(text, "Validation loss")


DAMAGES = {
    "result is cut off": ("result.json", lambda t: t[: len(t) // 2], "result.json is no json"),
    "result is a list": ("result.json", text_of("[1]"), "result.json holds list, not fields"),
    "result of a failure": ("result.json", field("status", "lost"), "status 'lost'"),
    "no tokens": ("result.json", field("tokens", GONE), "result.json has no tokens"),
    "tokens in words": ("result.json", field("tokens", "many"), "tokens is 'many', no number"),
    "seconds null": ("result.json", field("seconds", None), "seconds is None, no number"),
    "flops infinite": ("result.json", field("flops", float("inf")), "flops is inf, no number"),
    "steps true": ("result.json", field("steps", True), "steps is True, no number"),
    "memory in words": ("result.json", field("peak_memory_bytes", "x"), "peak_memory_bytes is 'x'"),
    "no validation": ("result.json", field("eval", {}), "result.json has no validation"),
    "odd length": ("result.json", field("eval/foo", {"loss": 1}), "validation at length 'foo'"),
    "loss NaN": ("result.json", field("eval/64/loss", float("nan")), "loss at length 64 is no num"),
    "loss edited": ("result.json", field("eval/64/loss", 0.001), "last loss at length 64 is 0.001"),
    "short loss edited": ("result.json", field("eval/32/loss", 1.0), "last loss at length 32 is 1"),
    "one length gone": ("result.json", field("eval/64", GONE), "result.json has no validation at"),
    "tokens edited": ("result.json", field("tokens", 5), "tokens are 5 in result.json"),
    "seconds edited": ("result.json", field("seconds", 1.0), "seconds are 1 in result.json"),
    "system edited": ("result.json", field("system", "gpt2"), "system is 'gpt2' in result.json"),
    "seed of the result edited": ("result.json", field("seed", 1), "seed is 1 in result.json, 0"),
    "shape edited": ("result.json", field("shape/H", 32), "shape is {"),
    "size edited": ("result.json", field("n_model", 9), "n_model is 9 in result.json, 6144 by"),
    "size gone": ("result.json", field("n_model", GONE), "result.json has no n_model"),
    "bits edited": ("result.json", field("eval/64/bits_per_byte", 0.1), "bits_per_byte at length"),
    "bits gone": ("result.json", field("eval/64/bits_per_byte", GONE), "64 is absent in result"),
    "step of a loss edited": ("result.json", field("eval/64/step", 1), "last step at length 64 is"),
    "best loss edited": ("result.json", field("eval/64/best_loss", 1), "best_loss at length 64 is"),
    "departure edited": ("result.json", field("departures", [DEPARTURE]),
                         "departure seed is 7 in result.json, 0 in config.json"),
    "departure without source": ("result.json", field("departures", [{"field": "x", "value": 0}]),
                                 "departures are no list of fields, values and sources"),
    "phase edited": ("result.json", field("phases", [PHASE | {"max_len": 512}]),
                     "short.max_len is 512 in result.json, 32 by config.json"),
    "phase in words": ("result.json", field("phases", "two"), "phases are no list"),
    "examples in words": ("result.json", field("phases", [PHASE | {"examples": "x"}]),
                          "examples or tokens of phase short are no numbers"),
    "too many tokens": ("result.json", field("phases", [PHASE | {"tokens": 200}]),
                        "200 tokens in 5 examples of phase short"),
    "width edited": ("config.json", field("net/width", 3), "planned: net.width is 3, planned 16"),
    "seed edited": ("config.json", field("seed", 5), "planned: seed is 5, planned 0"),
    "rate edited": ("config.json", field("optim/learning_rate", 1.0),
                    "planned: optim.learning_rate is 1.0, planned 'absent'"),
    "metrics gone": ("metrics.jsonl", None, "metrics.jsonl is missing"),
    "metrics cut off": ("metrics.jsonl", middle_cut_off, "metrics.jsonl:4 is damaged"),
    "metrics without step": ("metrics.jsonl", every('"step"', '"stp"'), "metrics.jsonl:1 is dam"),
    "metrics in words": ("metrics.jsonl", every('"eval/loss": ', '"eval/loss": "x", "y": '),
                         "a validation lacks a number"),
    "metrics without end": ("metrics.jsonl", no_long_validation, "metrics.jsonl has no validation"),
    "metrics is a list": ("metrics.jsonl", text_of("[]\n[]\n"), "metrics.jsonl:1 is damaged"),
    "config is a list": ("config.json", text_of("[]"), "config.json holds list, not fields"),
    "config gone": ("config.json", None, "config.json is missing"),
    "environment cut off": ("environment.json", text_of("{"), "environment.json is no json"),
    "devices in words": ("environment.json", field("devices", "cpu"), "devices is 'cpu', expected"),
    "starts are words": ("environment.json", field("earlier_starts", ["x"]), "earlier_starts is"),
    "an earlier start's in words": ("environment.json", field("earlier_starts", [{"numerics": []}]),
                                    "numerics of an earlier start is no number"),
    "numerics in words": ("environment.json", field("numerics", "x"), "numerics is 'x', expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_named_and_left_out(workdir, name) -> None:
    file, change, expected = DAMAGES[name]
    spoil(workdir / "runs" / RUN / file, change)
    text = said(workdir)
    assert re.search(DAMAGED + ".*" + re.escape(expected), text), text
    assert str(workdir) not in text.partition("## Reproduce")[0]
    bert, gpt2 = row(text, "Validation loss"), row(text, "Validation loss", "gpt2")
    assert "| 1 | 2 |" in bert and "| 2 | 2 |" in gpt2  # finished, and planned
    assert "[-]" in bert  # the loss of the seed that is left, which has no interval


FINE_TUNED = {
    "result is cut off": ("result.json", lambda t: t[:40], BROKEN + ".*not the result of a fine"),
    "remarks null": ("result.json", field("remarks", None), BROKEN + ".*remarks are no list"),
    "no score": ("result.json", field("eval", {}), f"1 of 4 fine-tunings failed: runs/{TASK}: "),
    "score NaN": ("result.json", field("eval/dev/accuracy", float("nan")), "failed: .*score is"),
    "score in words": ("result.json", field("eval/dev/accuracy", "x"), "failed: .*score is"),
    "score edited": ("result.json", field("eval/dev/accuracy", 0.99), BROKEN
                     + ".*predictions.tsv has accuracy .*but result.json beside it 0.99"),
    "seed edited": ("result.json", field("seed", 3), BROKEN + "seed is 3 in result.json, 0 by"),
    "shape edited": ("result.json", field("shape", {"A": 1}), BROKEN + "shape is .*by config.json"),
    "other metric": ("result.json", field("eval/dev", {"f1": 0.71}),
                     BROKEN + "predictions.tsv has f1 "),
    "predictions gone": ("predictions.tsv", None, BROKEN + "predictions.tsv is missing"),
    "predictions cut off": ("predictions.tsv", lambda t: t[:500], BROKEN + "predictions.tsv"),
    "config gone": ("config.json", None, "failed: .*damaged: .*config.json is missing"),
    "config is a list": ("config.json", text_of("[]"), "failed: .*holds list, not fields"),
    "config edited": ("config.json", field("seed", 5), "failed: .*seed is 5, expected"),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE_TUNED)
def test_a_damaged_fine_tuning_is_named_and_left_out(workdir, name) -> None:
    file, change, expected = FINE_TUNED[name]
    before = row(said(workdir), "GLUE: the large tasks")
    spoil(workdir / "runs" / TASK / file, change)
    text = said(workdir)
    below = text.partition("### GLUE: the large tasks")[2].partition("\n#")[0]
    assert re.search(expected, below), text  # where the score stands, not somewhere
    assert row(text, "GLUE: the large tasks") != before
    assert "99.0" not in row(text, "GLUE: the large tasks")


@pytest.mark.parametrize("name", [name for name, damage in FINE_TUNED.items() if damage[1]])
def test_one_seed_of_three_leaves_the_others(tmp_path, name) -> None:
    """The row's cell stays, and is of the two seeds that are whole."""
    workdir = reported_study.write(
        tmp_path, shapes=((2, 16, 2),), seeds=1, tasks=("qnli",), finetune_seeds=3,
        tables=["large"], figures=[],
    )  # fmt: skip
    before = row(said(workdir), "GLUE: the large tasks")
    file, change, _ = FINE_TUNED[name]
    spoil(workdir / "runs" / TASK / file, change)
    text = said(workdir)
    assert f"1 of 6 fine-tunings failed: runs/{TASK}: " in text
    after = row(text, "GLUE: the large tasks")
    assert after != before and not after.rstrip(" |").endswith("-"), after


ROWS = {"title": "", "stages": [], "shapes": [], "variants": []}
REFUSED = {
    "other text": (f"{RUN}/result", field("data_hash", "zz"), "data: .*trained on different texts"),
    "other parameters": (f"{RUN}/result", field("params", 9), "params: 9 in .*one net"),
    "numerics changed": (f"{RUN}/environment", field("numerics", 2), "numerics: version 2 in "),
    "other numerics before": (f"{RUN}/environment", field("earlier_starts", [{"numerics": 7}]),
                              "numerics: version 7 and 1 in"),
    "study cut off": (STUDY, lambda t: t[:500], "invented.json is damaged .*no json"),
    "study a list": (STUDY, text_of("[]"), "invented.json is damaged .*holds list"),
    "study without free": (STUDY, field("free", GONE), "damaged .free is missing"),
    "study free in words": (STUDY, field("free", "seed"), "free is str, expected list"),
    "study without runs": (STUDY, field("runs", GONE), "damaged .runs is missing"),
    "study with half a run": (STUDY, field("runs/1/shape", {}), "run 1 is damaged"),
    "unknown clock": (STUDY, field("matched", "tokenz"), "unknown clock 'tokenz': did you"),
    "unknown table": (STUDY, field("tables", ["probe"]), "unknown table 'probe'"),
    "unknown rows": (STUDY, field("tables", ["large:x"]), "unknown table rows 'x' in 'large:x'"),
    "rows in words": (STUDY, field("rows", "all"), "rows are not what they should be"),
    "rows with half of it": (STUDY, field("rows", {"x": {"title": ""}}), "rows are not what"),
    "rows that leave the folder": (STUDY, field("rows", {"../x": ROWS}), "rows are not what"),
    "unknown figure": (STUDY, field("figures", ["loss"]), "unknown figure 'loss'"),
    "unknown hypothesis": (STUDY, field("hypotheses", ["1x"]), "no hypothesis '1x'"),
    "unknown field allowed": (STUDY, field("allow", ["optim.x"]), "--allow=optim.x: no such field"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_one_message(workdir, name) -> None:
    file, change, expected = REFUSED[name]
    spoil(workdir / "runs" / f"{file}.json", change)
    with pytest.raises(ValueError, match=f"(?s){expected}"):
        report.make(workdir)


def spoil(path: pathlib.Path, change: Callable[[str], str] | None) -> None:
    """Changes a file, or removes it."""
    if change is None:
        path.unlink()
    else:
        path.write_text(change(path.read_text()))
