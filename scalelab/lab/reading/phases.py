"""What a finished run read: in each of its phases, from its validations, and of its corpus."""

from typing import Any, NamedTuple

from scalelab.lab.reading import run_files
from scalelab.lab.reading.run_check import PHASES
from scalelab.lab.reading.study_runs import PretrainRun


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


def of_run(run: PretrainRun) -> list[Phase]:
    """The phases that a run took; [] if its metrics are gone.

    A phase ends with a validation at its length, so that two phases of one length are told apart by
    nothing: they count as the first, unless their batches differ; then nothing is said.
    """
    rows = run_files.validations(run_files.read_metrics(run.folder / "metrics.jsonl", []))
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
        num_steps = end["step"] - steps
        sequences = num_steps * part["batch_size"]
        phase = Phase(name, part["max_len"], num_steps, sequences, end["tokens"] - tokens)
        if not (both and one_length):
            phase = phase._replace(**(_recorded(run, place) or _divided(run, phase)))
        found.append(phase)
        steps, tokens = end["step"], end["tokens"]
    return found


def num_text_tokens(run: PretrainRun) -> int | None:
    """Tokens of the text that a run could read, each text once; None: not known."""
    corpus = (run.result or {}).get("corpus")
    tokens = corpus.get("tokens") if isinstance(corpus, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def _recorded(run: PretrainRun, place: int) -> dict[str, Any]:
    """What result.json says of an epoch of a phase; {} in folders from before it said so."""
    phases = (run.result or {}).get("phases")
    if not isinstance(phases, list) or place >= len(phases) or not isinstance(phases[place], dict):
        return {}
    counts = [phases[place].get(name) for name in ("examples", "tokens")]
    if not all(isinstance(count, int) and count > 0 for count in counts):
        return {}
    return {"epoch_sequences": counts[0], "epoch_tokens": counts[1]}


def _divided(run: PretrainRun, phase: Phase) -> dict[str, Any]:
    """An epoch, whole batches of it, where the budget was in epochs."""
    epochs = run.config["optim"].get("total_epochs")
    if not epochs:
        return {}
    rate = run.config["long"].get("epoch_rate") if phase.name == "long" else None
    times = epochs * (1.0 if rate is None else rate)
    counts = phase.sequences, phase.tokens
    names = ("epoch_sequences", "epoch_tokens")
    return {name: round(count / times) for name, count in zip(names, counts, strict=True)}


def passes(run: PretrainRun) -> float | None:
    """How often a finished run read all its examples: its tokens by those of one pass.

    None if its files cannot tell: runs from before 2026-11-22 do not say what a pass has. Where the
    budget is in epochs and nothing else is said, it is these.
    """
    result = run.result or {}
    phases = result.get("phases")
    recorded = [_recorded(run, k) for k in range(len(phases) if isinstance(phases, list) else 0)]
    if recorded and all(recorded):
        return result["tokens"] / sum(phase["epoch_tokens"] for phase in recorded)
    epochs = run.config.get("optim", {}).get("total_epochs")
    return float(epochs) if run_files.is_finite(epochs) else None
