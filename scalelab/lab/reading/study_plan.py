"""What `study plan` expected of a run, whose shape need not have been known then."""

from collections.abc import Mapping
from typing import Any

Plan = Mapping[str, Mapping[str, Any]]  # from `study_runs.read_plan`


def planned(plan: Plan, name: str, stage: str, n_model: int) -> Mapping[str, Any] | None:
    """What `study plan` expected of a run; where its shape was not known, of one of its size.

    Args:
      plan: from `study_runs.read_plan`.
      name: of the run.
      stage: likewise.
      n_model: of its shape.

    Returns:
      None: the plan does not know it.
    """
    if name in plan:
        return plan[name]
    alike = [
        entry for other, entry in plan.items()
        if entry.get("foreseen") and entry["stage"] == stage
        and _but_for_shape(other) == _but_for_shape(name)
    ]  # fmt: skip
    return min(alike, key=lambda entry: abs(entry["n_model"] - n_model), default=None)


def _but_for_shape(name: str) -> list[str]:
    """The parts of a run's name: system, variant if any, seed."""
    system, _, *rest = name.split("-")
    return [system, *rest]
