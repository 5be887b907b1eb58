"""Measures scalelab/studies/seed_spread.csv from packed studies; as a program, writes it anew."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from scalelab.eval.score_names import MAIN, PRETRAINING_SCORES
from scalelab.lab.compare import comparability, estimates
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import Row
from scalelab.studies.power import FILE, Spread


def measure_spreads(folder: pathlib.Path) -> list[Spread]:
    """Returns the spread of each scale and score of packed studies, from the one of most rows."""
    found: dict[tuple[str, str], Spread] = {}
    for path in sorted(folder.glob("*/studies/*.json")):
        study = study_runs.read(path.parent.parent, path.stem)
        corpus = study.runs[0].config.get("data", {}).get("corpus", "")
        if study.facts.scale == "synthetic" and "/worlds/" not in corpus:
            continue  # real text with the settings of that scale
        scores = StudyScores(study)
        named = [MAIN[name] for name in study.facts.measured if name in MAIN]
        for score in (*named, "loss", "bits_per_byte"):
            table = np.array(_by_seed(study.points, scores, score))
            if table.ndim == 2 and min(table.shape) > 1:
                num_rows, num_seeds = table.shape
                squares = (estimates.interaction(table) ** 2).sum()
                variance = 2 * squares / ((num_rows - 1) * (num_seeds - 1))
                key, size = (study.facts.scale, score), (num_rows, num_seeds)
                deviation = float(f"{math.sqrt(variance):.4g}")
                if deviation and (key not in found or found[key][3:5] < size):
                    found[key] = Spread(*key, deviation, *size, study.name)
    return [found[key] for key in sorted(found)]


def _by_seed(points: Sequence[Row], scores: StudyScores, score: str) -> list[list[float]]:
    """Returns a score by seed of the rows with all seeds, of the most rows that compare."""
    most = max(len(point.runs) for point in points)
    whole = [p for p in points if len(p.finished) == most == len(scores.by_seed(p, score))]
    is_loss = score in PRETRAINING_SCORES
    groups = comparability.group_alike(
        whole, lambda a, b: not (is_loss and comparability.differing_losses((a, b), score))
    )
    return [scores.by_seed(point, score) for point in max(groups, key=len, default=[])]


if __name__ == "__main__":
    pd.DataFrame(measure_spreads(pathlib.Path("results"))).to_csv(FILE, index=False)
