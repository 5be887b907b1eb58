"""The clock that a study matches: what its runs have on it, and whether that is equal.

A study compares at equal steps, tokens, examples (sequences read), FLOPs or seconds. Its variants
may be about that very clock, such as half the steps, and a stage may be another experiment, so runs
are held to be equal within each variant and stage; what is said below a table is what is found.
"""

from collections.abc import Iterable, Sequence

from scalelab.helpers.names import nearest
from scalelab.lab.load import phases
from scalelab.lab.load.study_runs import Point, PretrainRun, Study

# What a study calls a clock, and result.json; examples are counted from the validations.
CLOCKS = {"steps": "steps", "tokens": "tokens", "examples": None, "flops": "flops",
          "secs": "seconds"}  # fmt: skip
TITLES = {"flops": "FLOPs", "secs": "seconds"}
TOLERANCE = 0.05  # by which runs may differ on it: whole steps, whole epochs


def check(clock: object, where: str) -> None:
    """Raises a ValueError, which begins with `where`, if there is no such clock."""
    if clock not in CLOCKS:
        raise ValueError(f"{where}: unknown clock {clock!r}: {nearest(str(clock), CLOCKS)}")


def title(study: Study) -> str:
    """The matched clock in words."""
    clock = study.facts["matched"]
    return TITLES.get(clock) or str(clock)


def reading(run: PretrainRun, clock: str) -> float:
    """How far a finished run came on a clock.

    Raises:
      ValueError: its examples cannot be told.
    """
    key = CLOCKS[clock]
    if key is not None:
        return getattr(run.result, key)
    found = phases.read_phases(run)
    if not found:
        raise ValueError(
            f"{run.name}: its examples cannot be told, as its metrics are gone, or its two phases"
            " have one length and different batches; match steps or tokens"
        )
    return sum(phase.sequences for phase in found)


def are_equal(values: Iterable[float]) -> bool:
    """Whether readings differ by no more than whole steps and epochs make them."""
    low, *_, high = sorted([*values] * 2)
    return high <= low * (1 + TOLERANCE)


def describe(study: Study, points: Sequence[Point]) -> str:
    """What is true of the matched clock over the finished runs of some rows: a sentence.

    Raises:
      ValueError: as `reading`.
    """
    clock, name = study.facts["matched"], title(study)
    groups: dict[tuple[str, str], list[float]] = {}
    for point in points:
        for run in point.finished:
            groups.setdefault((point.variant, run.stage), []).append(reading(run, clock))
    if not groups:
        return f"To be held equal: {name}."
    stages = len({stage for _, stage in groups})
    label = lambda key: f"{key[0]} ({key[1]})" if stages > 1 else key[0]  # noqa: E731
    apart = {key: values for key, values in groups.items() if not are_equal(values)}
    if apart:
        ranges = (f"{min(v):,.0f} to {max(v):,.0f} in {label(k)}" for k, v in apart.items())
        return f"Not held equal: {name}, {'; '.join(ranges)}."
    if are_equal(x for values in groups.values() for x in values):
        return f"Held equal: {name}, to {TOLERANCE:.0%}."
    means = (f"{label(k)} {sum(v) / len(v):,.0f}" for k, v in groups.items())
    return f"Held equal: {name}, to {TOLERANCE:.0%}, within each variant alone: {'; '.join(means)}."
