"""What a finished run read: in each of its phases, of its validations, and of its corpus."""

from typing import Any, NamedTuple

from scalelab.lab.load.study_runs import PretrainRun
from scalelab.runs import records

PHASES = ("short", "long")


class Phase(NamedTuple):
    """A phase of a training.

    Attributes:
      name: "short" or "long".
      max_len: tokens of its longest sequence.
      steps: that it took.
      sequences: that it read, all epochs together.
      tokens: real ones that it read.
      epoch_sequences: different ones that there are; None: not known.
      epoch_tokens: real ones of these.
    """

    name: str
    max_len: int
    steps: int
    sequences: int
    tokens: int
    epoch_sequences: int | None = None
    epoch_tokens: int | None = None

    @property
    def epochs(self) -> float | None:
        """How often it read its sequences."""
        return self.sequences / self.epoch_sequences if self.epoch_sequences else None


def read_phases(run: PretrainRun) -> list[Phase]:
    """Returns the phases that a run took; [] if its metrics are gone.

    A phase ends with a validation at its length. Two phases of one length cannot be told apart:
    they count as the first if their batches are alike, else none is returned.
    """
    rows = records.validations(run.lines)
    parts = [run.config[name] for name in PHASES]
    both = all(parts[1].get(rate) != 0 for rate in ("example_rate", "epoch_rate"))
    one_length = parts[0]["max_len"] == parts[1]["max_len"]
    if both and one_length and parts[0]["batch_size"] != parts[1]["batch_size"]:
        return []
    found, steps, tokens = [], 0, 0
    for place, (name, part) in enumerate(zip(PHASES, parts, strict=True)):
        ends = [row for row in rows if row["eval/max_len"] == part["max_len"]]
        if not ends or ends[-1]["step"] <= steps:
            continue
        end = ends[-1]
        num_steps = int(end["step"] - steps)
        sequences = num_steps * part["batch_size"]
        phase = Phase(name, part["max_len"], num_steps, sequences, int(end["tokens"] - tokens))
        if not (both and one_length):
            phase = phase._replace(**(_recorded(run, place) or _divided(run, phase)))
        found.append(phase)
        steps, tokens = end["step"], end["tokens"]
    return found


def num_text_tokens(run: PretrainRun) -> int | None:
    """Returns the tokens of the text that a run could read, each text once; None: not known."""
    corpus = run.result.corpus if run.result else None
    return corpus.tokens if corpus else None


def _recorded(run: PretrainRun, place: int) -> dict[str, Any]:
    """Returns an epoch of a phase by result.json; {} in folders from before it was recorded."""
    phases = run.result.phases if run.result else ()
    if place >= len(phases):
        return {}
    return {"epoch_sequences": phases[place].examples, "epoch_tokens": phases[place].tokens}


def _divided(run: PretrainRun, phase: Phase) -> dict[str, Any]:
    """Returns an epoch in whole batches, where the budget was in epochs."""
    epochs = run.config["optim"].get("total_epochs")
    if not epochs:
        return {}
    rate = run.config["long"].get("epoch_rate") if phase.name == "long" else None
    times = epochs * (1.0 if rate is None else rate)
    return {"epoch_sequences": round(phase.sequences / times),
            "epoch_tokens": round(phase.tokens / times)}  # fmt: skip


def num_passes(run: PretrainRun) -> float | None:
    """Returns how often a finished run read all its examples; None if its files cannot tell.

    That is its tokens by those of one pass, which runs from before 2026-11-22 do not record. Where
    the budget is in epochs and nothing else is recorded, it is these.
    """
    tokens = sum(phase.tokens for phase in run.result.phases) if run.result else 0
    if run.result and tokens:
        return run.result.tokens / tokens
    epochs = run.config.get("optim", {}).get("total_epochs")
    return float(epochs) if isinstance(epochs, int | float) else None
