"""What a finished run read: in each of its phases, and passes over its corpus."""

from typing import NamedTuple

from scalelab.lab.load.study_runs import PretrainRun
from scalelab.runs import records

PHASES = ("short", "long")


class Phase(NamedTuple):
    """A phase of a training; its tokens are real ones, without padding."""

    name: str  # "short" or "long"
    max_len: int  # tokens of its longest sequence
    steps: int
    sequences: int  # that it read, all epochs together
    tokens: int  # of these
    epoch_sequences: int | None = None  # different ones that there are; None: not known
    epoch_tokens: int | None = None  # of these

    @property
    def epochs(self) -> float | None:
        """How often it read its sequences."""
        return self.sequences / self.epoch_sequences if self.epoch_sequences else None


def read_phases(run: PretrainRun) -> list[Phase]:
    """Returns the phases that a run took; [] if its metrics are gone.

    A phase ends with a validation at its length. Two phases of one length cannot be told apart:
    they count as the first if their batches are alike, else none is returned.
    """
    rows, recorded = records.validations(run.lines), run.result.phases if run.result else ()
    short, long = (run.config[name] for name in PHASES)
    both = all(long.get(rate) != 0 for rate in ("example_rate", "epoch_rate"))
    alike = both and short["max_len"] == long["max_len"]
    if alike and short["batch_size"] != long["batch_size"]:
        return []
    found, steps, tokens = [], 0, 0
    for place, (name, part) in enumerate(zip(PHASES, (short, long), strict=True)):
        ends = [row for row in rows if row["eval/max_len"] == part["max_len"]]
        if not ends or ends[-1]["step"] <= steps:
            continue
        num_steps, num_tokens = int(ends[-1]["step"] - steps), int(ends[-1]["tokens"] - tokens)
        data = recorded[place] if place < len(recorded) and not alike else None
        epoch = (data.examples, data.tokens) if data else (None, None)
        sequences = num_steps * part["batch_size"]
        found.append(Phase(name, part["max_len"], num_steps, sequences, num_tokens, *epoch))
        steps, tokens = ends[-1]["step"], ends[-1]["tokens"]
    return found


def num_passes(run: PretrainRun) -> float | None:
    """Returns how often a finished run read all its examples; None if its files do not tell."""
    tokens = sum(phase.tokens for phase in run.result.phases) if run.result else 0
    return run.result.tokens / tokens if run.result and tokens else None
