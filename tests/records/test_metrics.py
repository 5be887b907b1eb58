"""Sums and weights, bits per byte, running steps, metrics.jsonl, the progress line."""

import dataclasses
import importlib.machinery
import io
import json
import math
import pathlib
import sys
import time
import types
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import objectives, train
from scalelab.helpers import progress
from scalelab.objectives import clm, mlm, nsp
from scalelab.records import baselines as baseline_lib
from scalelab.records import metrics
from scalelab.records.metrics import Clocks
from scalelab.state import Model


def read(folder: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# --- Sums and weights -----------------------------------------------------------------------------


def test_however_the_pairs_are_split_the_mean_is_the_same() -> None:
    rng = np.random.default_rng(0)
    losses, weights = rng.integers(0, 9, 60).astype(float), rng.integers(0, 2, 60).astype(float)
    pairs = [{"x": (a * w, w)} for a, w in zip(losses, weights, strict=True)]
    expected = np.average(losses, weights=weights)
    for size in (1, 7, 60):
        parts = [metrics.sum_pairs(pairs[i : i + size]) for i in range(0, 60, size)]
        assert metrics.divide(metrics.sum_pairs(parts))["x"] == expected


def test_bits_per_byte_by_hand() -> None:
    """A token a byte at ln 2 nats is one bit a byte; with four bytes a token a quarter of it."""
    assert metrics.bits_per_byte(math.log(2), 100, 100) == pytest.approx(1.0)
    assert metrics.bits_per_byte(math.log(2), 100, 400) == pytest.approx(0.25)
    assert metrics.bits_per_byte(math.log(256), 50, 100) == pytest.approx(4.0)


def test_summary_of_an_evaluation() -> None:
    total = {"mlm_loss": (30.0, 10.0), "mlm_accuracy": (4.0, 10.0), "nsp_loss": (1.5, 3.0)}
    total |= {"nsp_accuracy": (2.0, 3.0), "num_text_tokens": (600.0, 8.0)}
    total |= {"num_bytes": (2400.0, 8.0)}
    weights = {"mlm_loss": 1.0, "nsp_loss": 50.0}
    summary = metrics.summarize_eval(total, weights, {"mlm_loss": True})
    means = {"loss": 28.0, "mlm_loss": 3.0, "mlm_accuracy": 0.4, "nsp_loss": 0.5}
    text = {"perplexity": math.exp(3.0), "bits_per_byte": 3.0 * 600 / 2400 / math.log(2)}
    assert summary == pytest.approx(means | text | {"nsp_accuracy": 2 / 3})
    partly = metrics.summarize_eval(total, weights, {"mlm_loss": False})
    del summary["bits_per_byte"]
    summary["target_perplexity"] = summary.pop("perplexity")  # not of the text
    assert partly == summary


@dataclasses.dataclass(frozen=True)
class Spans:
    """Predicts the words that its source lacks, so that their mean is not that of the text."""

    name: ClassVar[str] = "spans"
    predicts: ClassVar[str | None] = "next"


def test_an_objective_declares_whether_its_losses_cover_the_text() -> None:
    objective: Any = [Spans(), mlm.MLM(9, 1, (0, 1)), clm.CLM(), nsp.NSP()]
    model: Any = types.SimpleNamespace(terms=[objectives.Term(o) for o in objective])
    found = Model.token_losses.fget(model)  # pyright: ignore
    assert found == {"spans_loss": False, "mlm_loss": True, "clm_loss": True}


# --- Steps in flight ----------------


def pairs(*losses: float) -> dict:
    return {"loss": (jnp.float32(losses), jnp.ones(len(losses)))}


def test_a_block_is_waited_for_when_the_next_was_started(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(train, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    settled = []
    in_flight = train.InFlight(lambda steps, secs: settled.append((steps, secs)), ahead=1)
    in_flight.wait()
    now[0] += 10
    in_flight.add(pairs(1.0, 2.0, 0.0), 2)  # the third has no step
    assert settled == []
    now[0] += 10
    in_flight.add(pairs(6.0), 1)
    assert settled == [([{"loss": (1.0, 1.0)}, {"loss": (2.0, 1.0)}], 20.0)]
    now[0] += 3
    in_flight.wait()
    assert settled[1:] == [([{"loss": (6.0, 1.0)}], 3.0)]
    now[0] += 100  # an evaluation, say
    in_flight.restart()
    now[0] += 5
    in_flight.add(pairs(7.0), 1)
    in_flight.wait()
    assert settled[2][1] == 5.0


# --- metrics.jsonl --------------------------------------------------------------------------------


def write(folder: pathlib.Path, *lines: tuple[Clocks, dict], step: int = 0, **more: Any) -> int:
    """Starts at a step, writes lines, ends; returns the number of lines that it found."""
    writer = metrics.Writer(folder, step, **more)
    found = writer.num_lines
    for line in lines:
        writer.write(*line)
    writer.close()
    assert writer.num_lines == found + len(lines)
    return found


def test_a_line_has_the_clocks_and_the_values(tmp_path: pathlib.Path) -> None:
    write(tmp_path, (Clocks(3, 500, 1e9, 2.5), {"train/loss": 4.0, "x": math.nan}))
    clocks = {"step": 3, "tokens": 500, "flops": 1e9, "seconds": 2.5}
    assert read(tmp_path) == [clocks | {"train/loss": 4.0}]


@pytest.mark.parametrize(
    "line",
    ['{"step": 5, "tokens": 1', '{"step": ' + "1" * 5000 + "}", "[" * 100_000 + "]" * 100_000,
     '{"step": "5"}', '{"step": 5, "x": "y"}', '{"tokens": 5}', "5", "\xff"],
    ids=lambda line: line[:12],
)  # fmt: skip
def test_a_line_that_is_none_is_dropped_and_counts_as_missing(tmp_path, line: str) -> None:
    assert not write(tmp_path, *((Clocks(step), {"train/loss": float(step)}) for step in (5, 10)))
    text = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(line + "\n" + text)
    assert write(tmp_path, step=10) == 2 and (tmp_path / "metrics.jsonl").read_text() == text


def events(folder: pathlib.Path) -> list[tuple[int, str, float]]:
    """(step, name, value) of all points in a folder of TensorBoard events."""
    from tensorboardX.proto import event_pb2

    found = []
    for path in sorted((folder / "tensorboard").glob("events.*")):
        data = path.read_bytes()
        while data:  # records: length (8 bytes), its checksum (4), content, checksum (4)
            size = int.from_bytes(data[:8], "little")
            event = event_pb2.Event.FromString(data[12 : 12 + size])
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            data = data[16 + size :]
    return found


def test_tensorboard_has_the_same_numbers_also_after_a_restart(tmp_path: pathlib.Path) -> None:
    lines = [(Clocks(step, 10 * step), {"train/loss": step + 0.25}) for step in (3, 6, 9)]
    write(tmp_path, *lines)
    write(tmp_path, (Clocks(9, 90), {"train/loss": -1.0}), step=6)
    for name, values in (("train/loss", [3.25, 6.25, -1.0]), ("tokens", [30, 60, 90])):
        points = [(step, value) for step, tag, value in events(tmp_path) if tag == name]
        assert points == list(zip((3, 6, 9), values, strict=True))


# --- For a person ---------------------------------------------------------------------------------


def test_clock_text() -> None:
    texts = {0: "0s", 59.9: "59s", 60: "1m00s", 725: "12m05s", 11220: "3h07m", math.inf: "?"}
    assert {secs: progress.format_secs(secs) for secs in texts} == texts


def test_the_time_left_counts_from_where_the_run_was_continued(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    left = progress.Eta(0.5)
    assert left.text(0.5) == "?"
    now[0] += 60
    assert left.text(0.6) == "4m00s"


def test_progress_overwrites_itself_on_a_terminal(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    shown = progress.Progress()
    shown.show("a long line")
    shown.show("short")
    shown.show("end", final=True)
    assert stream.getvalue() == "\ra long line\rshort      \rend  \n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_ten_seconds(monkeypatch, capsys) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with progress.show_bar("tokens", 60, show=True) as tick:
        for _ in range(6):
            now[0] += 5
            tick(10)
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "tokens: 33% | ETA 20s", "tokens: 67% | ETA 10s", "tokens: 100% | ETA 0s",
        "tokens: done in 30s",
    ]  # fmt: skip


@pytest.mark.parametrize("show", [True, False])
def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, show: bool) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with (
        progress.show_bar("tokens", 60, show=show) as tick,
        progress.show_bar("inner", 0, show=show) as other,
    ):
        tick(60)
        other(5)
    shown = sys.stderr.getvalue()
    assert all(text in shown for text in ("tokens", "100%", "inner")) if show else not shown


def test_baselines_are_missed_with_and_without_their_margin() -> None:
    found = objectives.load_baselines()
    last = {"mlm_loss": 4.8, "nsp_accuracy": 0.49, "unigram_nats": 5.0}

    def check(**asked: bool) -> list[tuple[str, bool, bool]]:
        made = baseline_lib.check_baselines(("mlm", "nsp", "clm"), {}, last, found, **asked)
        return [(x.objective, bool(x.failure), bool(x.lacking)) for x in made]

    assert check() == [("mlm", True, False), ("nsp", True, False), ("clm", False, True)]
    assert check(with_margin=False)[:2] == [("mlm", False, False), ("nsp", True, False)]


@pytest.mark.parametrize(("last", "missed", "lacking"), [
    ({"unigram_nats": 5.0, "targets_unigram_nats": 3.5}, False, ""),
    ({"unigram_nats": 5.0, "targets_unigram_nats": 2.5}, True, ""),
    ({"unigram_nats": 5.0}, False, "targets_unigram_nats"),
])  # fmt: skip
def test_the_unigrams_are_those_of_the_predicted_array(
    last: dict[str, float], missed: bool, lacking: str
) -> None:
    baselines: Any = {"spans": lambda options: objectives.Baseline("loss", None, 0.0, "targets")}
    given = last | {"spans_loss": 3.0}
    (made,) = baseline_lib.check_baselines(["spans"], {}, given, baselines)
    assert (bool(made.failure), made.lacking) == (missed, lacking)


def test_a_tracker_gets_every_line_and_a_missing_one_is_named(tmp_path, monkeypatch) -> None:
    calls = []

    class Stub(types.ModuleType):
        def init(self, **given: Any) -> "Stub":
            calls.append(given["project"])
            return self

        def log(self, values: dict[str, float], step: int) -> None:
            calls.append((step, values["train/loss"]))

        def finish(self) -> None:
            calls.append("end")

    with pytest.raises(ValueError, match="pip install trackio"):
        metrics.Writer(tmp_path, 0, tracker="trackio")
    monkeypatch.setitem(sys.modules, "trackio", Stub("trackio"))
    sys.modules["trackio"].__spec__ = importlib.machinery.ModuleSpec("trackio", None)
    for step in (3, 6):  # the second start keeps the line of the first
        line = Clocks(step), {"train/loss": step / 2}
        write(tmp_path, line, step=step - 3, tracker="trackio")
    assert calls == ["scalelab", (3, 1.5), "end", "scalelab", (3, 1.5), (6, 3.0), "end"]
    write(tmp_path, step=6, tracker=None)
    assert not (tmp_path / "tensorboard").exists() and len(read(tmp_path)) == 2
