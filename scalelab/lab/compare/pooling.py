"""Pooling: which runs of one system may stand on one curve or in one grid.

Runs share a pool if they agree in all that comparability (comparability.py) holds equal within a
system: the science fields, the texts, the numerics version and, where a score was measured, how
they were fine-tuned; but for their seeds, and for what the caller sets free: SHAPE, or BUDGET where
that is what an axis shows. Other pools are shown apart or refused. Runs are seeds of one point only
if nothing but their seed differs, whatever is set free.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

from scalelab.helpers.names import nearest
from scalelab.lab.compare import comparability, run_points
from scalelab.lab.compare.comparability import PREFIX
from scalelab.lab.compare.run_points import INIT, RunPoint

# The feed-forward width is not told by AxHxL, so that runs of one shape must agree in it.
SHAPE = frozenset(comparability.SHAPE_FIELDS) - {"net.ffn_width"}
CLOCKS = ("epochs", "flops", "secs", "steps", "tokens")
TOTALS, WARMUPS = (tuple(f"optim.{what}_{clock}" for clock in CLOCKS)
                   for what in ("total", "warmup"))  # fmt: skip
BUDGET = frozenset(TOTALS + WARMUPS)
NO_COLUMNS = ("init", PREFIX)  # what --where cannot ask of a pre-training

Pools = dict[str, list[RunPoint]]


def pool(
    points: Sequence[RunPoint], free: Collection[str], allow: Collection[str] = ()
) -> tuple[Pools, list[str]]:
    """Sorts the points of one system into pools.

    Args:
      points: all of one system.
      free: fields in which runs of a pool may differ.
      allow: likewise, because the user says so.

    Returns:
      The points of each pool by its name, "bert" or "bert, 150 secs", and what has to be said.
    """
    system = points[0].system
    groups = _groups(points, free, allow)
    parts_of_each = _tell_apart([group[0] for group in groups], {*free, *allow})
    names = [", ".join([system, *(words for words, _ in parts)]) for parts in parts_of_each]
    notes = []
    if len(groups) > 1:
        firsts, let = [group[0] for group in groups], {*free, *allow}
        fields = differing(firsts, let) or differing(points, let.difference(WARMUPS))
        notes.append(
            f"{system}: runs differ in {', '.join(fields)}, which the comparability contract holds"
            f" equal, and are not pooled: {'; '.join(map(_choice, parts_of_each))};"
            f" --allow={','.join(fields)} pools them all the same"
        )
    for field in sorted({f for group in groups for f in differing(group, free) if f in allow}):
        values = sorted({_text(p.fields.get(field)) for p in points})
        notes.append(f"{system}: allowed to differ, against the contract: {field}:"
                     f" {', '.join(values)}")  # fmt: skip
    return dict(zip(names, groups, strict=True)), notes


def check_one_pool(
    points: Sequence[RunPoint], free: Collection[str], allow: Collection[str], where: str
) -> list[str]:
    """Refuses runs of several systems or pools.

    Args:
      points: of the runs.
      free: fields in which they may differ.
      allow: likewise, because the user says so.
      where: they lie, for the message.

    Returns:
      What has to be said of them.

    Raises:
      ValueError: with the fields in which they differ, and the remedy.
    """
    systems = run_points.by_system(points)
    if len(systems) > 1:
        raise ValueError(f"{where} holds {', '.join(systems)}: choose, as --where=system=bert does")
    found, notes = pool(points, free, allow)
    if len(found) > 1:
        raise ValueError(f"{where}: {notes[0]}")
    return notes


def parse_allowed(text: str, points: Sequence[RunPoint]) -> frozenset[str]:
    """Reads the fields that a user allows to differ: names with commas between.

    Raises:
      ValueError: no run has such a field; with the nearest names.
    """
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    known = BUDGET | {field for p in points for field in p.fields}
    for name in sorted(names - known):
        raise ValueError(f"--allow={name}: no such field: {nearest(name, known)}")
    return names


def differing(points: Sequence[RunPoint], free: Collection[str] = ()) -> list[str]:
    """Returns the fields in which points differ, but for those set free."""
    names = {field for p in points for field in p.fields} - {*free, INIT}
    return [name for name in sorted(names) if len({repr(p.fields.get(name)) for p in points}) > 1]


def describe_undeclared(
    pools: Pools, free: Collection[str], allow: Collection[str] = ()
) -> list[str]:
    """Names the systems that differ in more than they declare.

    Args:
      pools: of all systems, by name; of two systems those that are most alike count.
      free: fields that may differ.
      allow: likewise.
    """
    points = [pool[0] for pool in pools.values()]
    systems = run_points.by_system(points)
    notes = []
    for ours, theirs in itertools.combinations(systems, 2):
        pairs = itertools.product(systems[ours], systems[theirs])
        found = min(
            (differing(pair, {"system", *free, *allow, *pair[0].departures, *pair[1].departures})
             for pair in pairs), key=len,
        )  # fmt: skip
        if found:
            notes.append(
                f"{ours} and {theirs} differ in {', '.join(found)}, which neither declares as a"
                " departure: only a study that declares them may compare the two"
            )
    return notes


# --- Inside ---------------------------------------------------------------------------------------


def _groups(
    points: Sequence[RunPoint], free: Collection[str], allow: Collection[str]
) -> list[list[RunPoint]]:
    """Groups points by what is not free; even free budgets share one rule of warm-up."""

    def fixed(point: RunPoint) -> Any:
        return [(k, v) for k, v in sorted(point.fields.items())
                if k not in {*free, *allow, INIT}]  # fmt: skip

    def budget(point: RunPoint) -> Any:
        return [point.fields.get(name) for name in TOTALS]

    groups = _grouped(points, fixed)
    if not BUDGET <= {*free}:
        return groups
    others = {field for p in points for field in p.fields}.difference(WARMUPS).union(allow)
    alike = [same for group in groups for same in _grouped(group, budget)]
    if any(differing(same, others) for same in alike):
        return _grouped(points, lambda p: (fixed(p), _warmup(p)))
    return groups


def _grouped(points: Sequence[RunPoint], key: Callable[[RunPoint], Any]) -> list[list[RunPoint]]:
    found: dict[str, list[RunPoint]] = {}
    for point in points:
        found.setdefault(repr(key(point)), []).append(point)
    return list(found.values())


def _warmup(point: RunPoint) -> str:
    """Describes the warm-up, as a share of the budget if both are on one clock."""
    for name in WARMUPS:
        value, total = point.fields.get(name), point.fields.get(name.replace("warmup", "total"))
        if value is not None and total:
            return f"warm-up {value / total:.3g} of the budget"
        if value is not None:
            return f"warm-up {value:,g} {name.rpartition('_')[2]}"
    return "no warm-up"


def _tell_apart(points: Sequence[RunPoint], free: set[str]) -> list[list[tuple[str, str]]]:
    """Finds the few fields that tell points of different pools apart.

    Returns:
      For each point the parts of its name, each with the condition of --where that chooses it; ""
      where there is none.
    """
    found: list[list[tuple[str, str]]] = [[] for _ in points]
    fields = differing(points, free)
    steps = [[_budget(p) for p in points]] if set(TOTALS) & set(fields) else []
    steps += [[_part(field, p) for p in points] for field in fields if field not in BUDGET]
    steps += [[_part(field, p) for p in points] for field in fields if field in WARMUPS]
    steps += [[(_warmup(p), "") for p in points]]
    for step in steps:
        longer = [[*parts, part] for parts, part in zip(found, step, strict=True)]
        if len(set(map(repr, longer))) > len(set(map(repr, found))):
            found = longer
    return found


def _budget(point: RunPoint) -> tuple[str, str]:
    for name in TOTALS:
        value = point.fields.get(name)
        if value is not None:
            return f"{value:,.12g} {name.rpartition('_')[2]}", f"{name}={value!r}"
    return "no budget", ""


def _part(field: str, point: RunPoint) -> tuple[str, str]:
    text = _text(point.fields.get(field))
    askable = not field.startswith(NO_COLUMNS) and "," not in text
    return f"{field}={text[:20]}", f"{field}={text}" * askable


def _choice(parts: Sequence[tuple[str, str]]) -> str:
    """Describes how a pool is chosen."""
    words = ", ".join(words for words, _ in parts)
    conditions = [condition for _, condition in parts]
    return f"{words} (--where={','.join(conditions)})" if all(conditions) else words


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
