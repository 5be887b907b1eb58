"""The thesis as a comparison: the members of `lab.compare.scores.Comparison`.

A study of configs/studies names this module: config.comparison = "scalelab.thesis.comparison".
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from scalelab.thesis import counts, hypotheses, loss_hypotheses, variant_hypotheses
from scalelab.thesis.protocol import departures
from scalelab.thesis.published import read_scores as published
from scalelab.thesis.size_figure import draw
from scalelab.thesis.tables import TABLES

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
FIGURES = {"score_by_size": draw}
CAPTIONS = {
    "score_by_size": "Scores against N with 95% intervals; rows of equal N stand slightly apart.",
}


def remarks(ids: Sequence[str]) -> dict[str, str]:
    """Returns for each hypothesis its verdict on the published tables."""
    this: Any = sys.modules[__name__]
    found = counts.evaluate(this, published(), ids) if ids else []
    return {f.id: f"On the published tables: {f.verdict}, {f.why}." for f in found}
