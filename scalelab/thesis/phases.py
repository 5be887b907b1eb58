"""The two phases of a pre-training of the thesis: short, then long sequences."""

from typing import NamedTuple

from scalelab.lab.load.study_runs import PretrainRun
from scalelab.records import run_files

PHASES = ("short", "long")


class Phase(NamedTuple):
    """A phase of a training; token counts are without padding."""

    name: str  # "short" or "long"
    max_len: int  # maximum number of tokens of a sequence
    steps: int
    sequences: int  # number of sequences read in all epochs
    tokens: int  # tokens of all sequences read
    epoch_sequences: int | None = None  # sequences of one epoch; None: not known
    epoch_tokens: int | None = None  # tokens of one epoch

    @property
    def epochs(self) -> float | None:
        """Number of passes over its sequences."""
        return self.sequences / self.epoch_sequences if self.epoch_sequences else None


def read_phases(run: PretrainRun) -> list[Phase]:
    """Returns the phases of a run; [] if its metrics are missing.

    A phase ends with a validation at its length. Two phases of equal length cannot be separated:
    they count as one first phase if their batches are equal, else the result is [].
    """
    rows, recorded = run_files.validations(run.lines), run.result.phases if run.result else ()
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
        sequences, epochs = num_steps * part["batch_size"], run.config["optim"].get("total_epochs")
        epoch: tuple[int | None, int | None] = (None, None)
        if place < len(recorded) and not alike:
            epoch = recorded[place].examples, recorded[place].tokens
        elif epochs and not alike:  # in whole batches
            rate = long.get("epoch_rate") if name == "long" else None
            times = epochs * (1.0 if rate is None else rate)
            epoch = round(sequences / times), round(num_tokens / times)
        found.append(Phase(name, part["max_len"], num_steps, sequences, num_tokens, *epoch))
        steps, tokens = ends[-1]["step"], ends[-1]["tokens"]
    return found
