"""What a finished run read: in each of its phases, from its validations, and of its corpus."""

from typing import NamedTuple

from scalelab.lab import run_files
from scalelab.lab.study_runs import PretrainRun

NAMES = ("short", "long")


class Phase(NamedTuple):
    """A phase of a training: its name, maximum length, steps, sequences and real tokens."""

    name: str
    max_len: int
    steps: int
    sequences: int
    tokens: int


def of_run(run: PretrainRun) -> list[Phase]:
    """The phases that a run took; [] if its metrics are gone.

    A phase ends with a validation at its length, so that two phases of one length are told apart by
    nothing: they count as the first, unless their batches differ; then nothing is said.
    """
    rows = run_files.validations(run_files.read_metrics(run.folder / "metrics.jsonl", []))
    parts = [run.config[name] for name in NAMES]
    both = all(parts[1].get(rate) != 0 for rate in ("example_rate", "epoch_rate"))
    one_length = parts[0]["max_len"] == parts[1]["max_len"]
    if both and one_length and parts[0]["batch_size"] != parts[1]["batch_size"]:
        return []
    found, steps, tokens = [], 0, 0
    for name, part in zip(NAMES, parts, strict=True):
        ends = [row for row in rows if row["eval/max_len"] == part["max_len"]]
        if not ends or ends[-1]["step"] <= steps:
            continue
        end = ends[-1]
        num_steps = end["step"] - steps
        sequences = num_steps * part["batch_size"]
        found.append(Phase(name, part["max_len"], num_steps, sequences, end["tokens"] - tokens))
        steps, tokens = end["step"], end["tokens"]
    return found


def passes(run: PretrainRun) -> float | None:
    """How often a finished run read all its examples: its tokens by those of one pass.

    None if its files cannot tell: runs from before 2026-11-22 do not say what a pass has. Where the
    budget is in epochs and nothing else is said, it is these.
    """
    result = run.result or {}
    tokens = result.get("pass_tokens", 0)
    if run_files.is_finite(tokens) and tokens > 0:
        return result["tokens"] / tokens
    epochs = run.config.get("optim", {}).get("total_epochs")
    return float(epochs) if run_files.is_finite(epochs) else None
