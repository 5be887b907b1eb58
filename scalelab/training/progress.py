"""The numbers of a pre-training in progress, and the marks that a step reaches."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.records.metrics import Clocks


@dataclasses.dataclass
class Progress:
    """The numbers of a run that change in training; a checkpoint holds them as JSON."""

    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    phase: int = 0  # index of the phase in progress
    phase_start: int = 0  # the step at which that phase began
    best: float = math.inf  # lowest validation loss of the phase in progress
    # The last validation of each phase, by its length in tokens.
    evals: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    data: str = ""  # fingerprint of the training examples
    # (sum, weight) of each metric since the last logged line.
    unlogged: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    # Names of the parameters that the run of --init did not have.
    initialised: list[str] = dataclasses.field(default_factory=list)
    num_lines: int | None = 0  # lines of metrics.jsonl; None in checkpoints of older versions

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Progress":
        """Reverses dataclasses.asdict; reads checkpoints of older versions too."""
        known = {field.name for field in dataclasses.fields(cls)} & values.keys()
        own: dict[str, Any] = {"num_lines": None} | {name: values[name] for name in known}
        own |= {"clocks": Clocks(**values["clocks"]), "best": float(values["best"])}
        return cls(**own)


class Reached(NamedTuple):
    """The marks that a step reached."""

    words: range  # multiples of eval.pairs_every_words, as 1, 2, ...
    shares: Sequence[float]  # machine.kept_shares
    # Whether the step's checkpoint is never deleted: at the shares, and at N, 2 N, ... 10 N, 20 N,
    # ... 100 N, ... words for N = eval.pairs_every_words, as the BabyLM Challenge asks for.
    is_kept: bool
