"""Invented scores with a planted truth, for each hypothesis one where it holds and one not."""

import functools
import zlib

import numpy as np

from scalelab.config.pretraining import Shape
from scalelab.lab.compare import estimates
from scalelab.lab.compare.claims import ABOVE, Treatment
from scalelab.records.study_file import DEFAULT
from scalelab.thesis import published
from scalelab.thesis.published import Row

KEPT = (DEFAULT, "half_steps", "half_batch")
CORNER = Shape(2, 128, 2)
# Shapes of the thesis and of its smaller studies that have grown in width and in depth.
BALANCED = {Shape(2, 204, 7), Shape(2, 256, 9), Shape(2, 90, 4), Shape(2, 22, 4)}
OF_FORMATS = (DEFAULT, "mlm_on_pairs", "mlm_on_sentences", "pairs_unique", "mlm_on_pairs_unique")
SCORES = ("large", "cola", "loss", "seconds")


def thesis_rows() -> list[Row]:
    """Rows of the published tables, with BERT's variants, and those of the study `formats`."""
    rows = [row for row in published.read_scores().rows if row.variant in KEPT]
    rows = [row for row in rows if row.variant == DEFAULT or row.system == "bert"]
    rows += [Row("bert", CORNER, variant) for variant in OF_FORMATS[1:]]
    return [*rows, Row("gpt", CORNER, "left_to_right")]


def two_sided(estimate: estimates.Estimate) -> float:
    """The p-value of the hypothesis that the true value is 0."""
    return min(ABOVE.p_values(estimate.resamples))


class Invented:
    """Scores over rows, each score with a truth and normal noise over seeds."""

    def __init__(self, truth, sd: float, num_seeds: int = 3, seed: int = 0, rows=None) -> None:
        """`truth(row, score)` is a number, or None; sd is of a score, and relative for the rest."""
        self.rows = thesis_rows() if rows is None else rows
        rng = np.random.default_rng(seed)
        self.numbers, self.found_curves = {}, {}
        for row in self.rows:
            for score in SCORES:
                mean = truth(row, score)
                if mean is not None:
                    scale = sd * (mean if score == "seconds" else 1)
                    self.numbers[row, score] = rng.normal(mean, scale, num_seeds)
            curve = truth(row, "curve")
            if curve is not None:
                noise = rng.normal(0, sd, num_seeds)
                self.found_curves[row] = {
                    k: {128: np.array(curve) + [0, x]} for k, x in enumerate(noise)
                }
        self.value = functools.cache(self.slow_value)

    def slow_value(self, row, score):
        numbers = self.numbers.get((row, score))
        seed = zlib.crc32(f"{row.label} {score}".encode())
        order = np.random.default_rng(seed).permutation(estimates.NUM_QUANTILES)
        return None if numbers is None else estimates.student(numbers, order)

    def contrast(self, weights, score):
        parts = [w * np.asarray(self.numbers[row, score]) for row, w in weights.items()]
        return estimates.student([sum(own) for own in zip(*parts, strict=True)])

    def check_treatment(self, rows, score):
        return Treatment()

    def curves(self, row):
        return self.found_curves.get(row, {})

    def passes(self, row):
        return [1.0]

    def remarks(self, scores):
        return []


def doublings(row) -> float:
    return float(np.log2(row.shape.n_model / CORNER.n_model))


def only(score, number):
    """A truth of one score; all others are 0.65, losses 3, seconds 100."""
    rest = {"large": 0.65, "cola": 0.1, "loss": 3.0, "seconds": 100.0}
    return lambda row, name: number(row) if name == score else rest.get(name)


def by_system(bert, roberta, gpt2):
    return lambda row: {"bert": bert, "roberta": roberta}.get(row.system, gpt2)


def falling(row, better: float):
    """A curve whose loss at any time is lower the larger the model, if better > 0."""
    return [(t, 9.0 - t / 100 - better * doublings(row)) for t in (1.0, 50.0, 100.0)]


RATE = by_system(0.03, 0.01, 0.0)
# Hypothesis -> a truth where it holds, and one where it does not.
PLANTED = {
    "1a": (only("large", by_system(0.7, 0.65, 0.6)), only("large", by_system(0.6, 0.65, 0.7))),
    "1b": (only("large", by_system(0.7, 0.65, 0.6)), only("large", by_system(0.6, 0.65, 0.7))),
    "2a": (only("large", lambda r: 0.6 + 0.02 * doublings(r)),
           only("large", lambda r: 0.8 - 0.02 * doublings(r))),
    "2b": (only("large", lambda r: 0.7 - 0.1 * 2 ** -doublings(r)),
           only("large", lambda r: 0.6 + 0.01 * doublings(r) ** 2)),
    "2c": (only("large", lambda r: 0.6 + RATE(r) * doublings(r)),
           only("large", lambda r: 0.6 + 0.02 * doublings(r))),
    "2d": (only("cola", lambda r: (r.shape.width - 128) / 2000),
           only("cola", lambda r: r.shape.num_layers / 100)),
    "3": (only("large", lambda r: 0.6 + 0.05 * (r.shape in BALANCED)),
          only("large", lambda r: 0.6 - 0.05 * (r.shape in BALANCED))),
    "4a": (only("large", lambda r: 0.6),
           only("large", lambda r: 0.1 * float(np.log2(r.shape.width)))),
    "4b": (only("large", lambda r: 0.05 * r.shape.num_heads),
           only("large", lambda r: -0.05 * r.shape.num_heads)),
    "6": (only("curve", lambda r: falling(r, 0.1)), only("curve", lambda r: falling(r, -0.1))),
    "7a": (only("large", lambda r: 0.65 - 0.005 * (r.variant == "half_steps")),
           only("large", lambda r: 0.65 - 0.06 * (r.variant == "half_steps"))),
    "7b": (only("seconds", lambda r: 60 if r.variant == "half_batch" else 100),
           only("seconds", lambda r: 40 if r.variant == "half_batch" else 100)),
}  # fmt: skip


def ranked(sign: float):
    """Loss and score both follow N: with sign 1 the lower loss has the higher score."""

    def truth(row, score):
        if score == "loss":
            return 5 - 0.3 * doublings(row) - row.shape.width / 1000
        if score == "large":
            return 0.6 - 0.1 * sign * (truth(row, "loss") - 5)
        return None

    return truth


PLANTED["5"] = (ranked(-1), ranked(1))


def better(*variants: str):
    """A truth where these variants of a format score 0.05 higher than others, or lower."""
    return tuple(
        only("large", lambda r, sign=sign: 0.6 + sign * 0.05 * (r.variant in variants))
        for sign in (1, -1)
    )


PLANTED |= {
    "f1": better(DEFAULT, "pairs_unique"), "f2": better("mlm_on_pairs"),
    "f3": better("mlm_on_pairs_unique"), "f4": better("pairs_unique"),
    "f5": better("mlm_on_sentences"),
}  # fmt: skip
