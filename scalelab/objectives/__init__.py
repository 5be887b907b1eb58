"""Objectives: what is minimised on a batch. Each file is one; none knows a net's inside.

An objective module exports:

  NEEDS_PAIRS: bool
      Whether examples must be pairs of segments with labels.
  NEEDS_CAUSAL: bool | None
      Whether the net must (True) or must not (False) be causal; None: either.
  make(*, vocab_size, special_ids, mask_rate) -> objective
      `special_ids` maps roles (pad, mask, ...) to ids. An objective ignores what it has no use for.

An objective is a frozen dataclass with `name`, `needs_pairs` and four methods, all but the first of
them device code:

  num_predicted(length) -> int
      Positions of an example of `length` that pass through the token head, for counting FLOPs.
  prepare(batch, rng) -> batch
      Adds what it needs to the batch. Random draws are keyed by example, so that splitting a batch
      cannot move them.
  weight(batch) -> float32 []
      Number of predictions in a prepared batch; padding examples (length 0) count nothing.
  terms(model, hidden, batch, *, accuracy=False) -> {"loss": (sum, weight), ...}
      Float32 sums over the batch and their weights; "accuracy" as well if asked for, because it
      costs an argmax over the vocabulary.
"""

import types

from scalelab.helpers.names import load_module, nearest


def load(name: str) -> types.ModuleType:
    """Imports the objective `name`.

    Raises:
      ValueError: there is no such objective; the message names the nearest.
    """
    return load_module("objectives", name, but=("xent",))


def check(
    names: tuple[str, ...], *, served: tuple[str, ...], causal: bool, has_pairs: bool
) -> None:
    """Refuses objectives that this net or format cannot serve.

    Args:
      names: the objectives whose losses are to be summed.
      served: the system's OBJECTIVES.
      causal: the system's CAUSAL.
      has_pairs: the format's HAS_PAIRS.

    Raises:
      ValueError: an unknown or repeated objective, or one that cannot work here, with the reason.
    """
    if not names or len(set(names)) != len(names):
        raise ValueError(f"expected different objectives joined by '+', got {'+'.join(names)!r}")
    for name in names:
        module = load(name)
        if module.NEEDS_PAIRS and not has_pairs:
            raise ValueError(
                f"objective {name!r} predicts a label of a pair of segments, but the format makes "
                "no pairs; use data.format=segment_pair or leave the objective out"
            )
        if module.NEEDS_CAUSAL is not None and module.NEEDS_CAUSAL != causal:
            needed, got = ("", "sees both sides") if module.NEEDS_CAUSAL else ("not ", "is causal")
            raise ValueError(
                f"objective {name!r} needs a net that is {needed}causal, and this one {got}; "
                f"this system serves: {', '.join(served)}"
            )
        if name not in served:
            raise ValueError(
                f"this system does not serve objective {name!r}: {nearest(name, served)}"
            )
