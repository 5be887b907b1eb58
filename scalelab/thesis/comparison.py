"""The thesis as a comparison: the members of `lab.compare.scores.Comparison`.

A study of configs/studies names this module: config.comparison = "scalelab.thesis.comparison".
Tables have the layout of chapter 7:

  data              tokens of an epoch and of the training, by phase   (Table 7.1)
  large             GLUE-Large and the large tasks                     (7.2, 7.3, 7.4, 7.8)
  small             the four small tasks                               (B.1, B.2, B.3, B.5)
  strategies        variants of one model: time and the large tasks    (7.5)
  strategies_small  the same with the small tasks                      (B.4)

Tables 7.6 and 7.7 are the tables `grid` and `cost` of every study. The thesis prints MNLI as
"m/mm"; here it has two columns, so that each has its interval.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from scalelab.lab.show.score_tables import LARGE, SMALL, TIME, MakeTable, build_scores
from scalelab.thesis import counts, data_table, hypotheses, loss_hypotheses, variant_hypotheses
from scalelab.thesis.protocol import departures
from scalelab.thesis.published import read_scores as published
from scalelab.thesis.size_figure import draw

__all__ = ["CAPTIONS", "FIGURES", "HYPOTHESES", "TABLES", "departures", "published", "remarks"]

HYPOTHESES = {
    "1a": partial(hypotheses.objectives, name="1a"),
    "1b": partial(hypotheses.objectives, name="1b"),
    "2a": hypotheses.growth,
    "2b": hypotheses.saturation,
    "2c": hypotheses.different_growth,
    "2d": hypotheses.growth_of_cola,
    "3": hypotheses.several_dimensions,
    "4a": hypotheses.similar_shapes,
    "4b": hypotheses.heads_follow_width,
    "5": loss_hypotheses.unreliable_loss,
    "6": loss_hypotheses.larger_for_less,
    **variant_hypotheses.HYPOTHESES,
}
TABLES: dict[str, MakeTable] = {
    "data": data_table.build,
    "large": partial(
        build_scores, title="GLUE: the large tasks", columns=LARGE, needs_tasks=True
    ),
    "small": partial(
        build_scores, title="GLUE: the small tasks", columns=SMALL, needs_tasks=True
    ),
    "strategies": partial(
        build_scores, title="Training strategies: time and the large tasks",
        columns=(TIME, *LARGE), by_variant=True,
    ),
    "strategies_small": partial(
        build_scores, title="Training strategies: time and the small tasks",
        columns=(TIME, *SMALL), needs_tasks=True, by_variant=True,
    ),
}  # fmt: skip
FIGURES = {"score_by_size": draw}
CAPTIONS = {
    "score_by_size": "Scores against N with 95% intervals; rows of equal N stand slightly apart.",
}


def remarks(ids: Sequence[str]) -> dict[str, str]:
    """Returns for each hypothesis its verdict on the published tables."""
    this: Any = sys.modules[__name__]
    found = counts.evaluate(this, published(), ids) if ids else []
    return {f.id: f"On the published tables: {f.verdict}, {f.why}." for f in found}
