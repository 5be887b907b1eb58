"""The interface between a study and its comparison: rows, scores by name, statements.

`config.comparison` of a study is the dotted name of a module that satisfies `Comparison`, such as
"scalelab.thesis.comparison" or a user's own. The lab imports it by that name and renders its
hypotheses with their verdicts, its tables and figures, and published numbers to print beside.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from scalelab.config.pretraining import Shape
from scalelab.lab.compare.claims import Finding
from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.load.study_runs import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from scalelab.lab.show.score_tables import TableRequest
    from scalelab.lab.tables import Table

# Score -> task, dev split, metric.
OF_TASKS = {
    "mnli_m": ("mnli", "matched", "accuracy"),
    "mnli_mm": ("mnli", "mismatched", "accuracy"),
    "qqp": ("qqp", "dev", "accuracy"),
    "qqp_f1": ("qqp", "dev", "f1"),
    "qnli": ("qnli", "dev", "accuracy"),
    "sst2": ("sst2", "dev", "accuracy"),
    "cola": ("cola", "dev", "matthews"),
    "stsb": ("stsb", "dev", "pearson"),
    "mrpc": ("mrpc", "dev", "f1"),
    "mrpc_acc": ("mrpc", "dev", "accuracy"),
    "rte": ("rte", "dev", "accuracy"),
    "wnli": ("wnli", "dev", "accuracy"),
    "same_document": ("same_document", "dev", "accuracy"),
    "swapped_words": ("swapped_words", "dev", "accuracy"),
}
# GLUE-Large is the mean of three tasks; the protocol does not say which metric QQP has in it.
MEANS = {"large": ("mnli_m", "qqp", "qnli"), "large_f1": ("mnli_m", "qqp_f1", "qnli")}
LARGE = MEANS["large"]
LARGE_TASKS = tuple(OF_TASKS[part][0] for part in LARGE)
OF_PRETRAINING = ("loss", "seconds")
SCORES = (*MEANS, *OF_TASKS, *OF_PRETRAINING)
TITLES = {
    "large": "GLUE-Large", "large_f1": "GLUE-Large with QQP's F1", "loss": "validation loss",
    "seconds": "seconds of pre-training",
}  # fmt: skip
UNIGRAM = "unigram_nats"  # result.json: entropy of the unigram distribution of the training text
MEMBERS = ("HYPOTHESES", "TREATMENTS", "TABLES", "FIGURES", "published", "departures")


class Row(Protocol):
    """A row of a table: study_runs.Point, or a printed one."""

    @property
    def system(self) -> str:
        """The system's name."""
        ...

    @property
    def shape(self) -> Shape:
        """The shape of the net."""
        ...

    @property
    def variant(self) -> str:
        """The variant's name in the study; study_runs.BASELINE changes nothing."""
        ...

    @property
    def label(self) -> str:
        """The name in tables."""
        ...


class Evidence(Protocol):
    """The scores of a study, or printed ones.

    Attributes:
      counts_only: True if no value has an interval, so that cases can only be counted.
    """

    counts_only: bool

    @property
    def rows(self) -> Sequence[Row]:
        """All rows, in the order of tables."""
        ...

    def value(self, row: Any, score: str) -> Estimate | None:
        """Returns the score of a row; None if there is none."""
        ...

    def contrast(self, weights: Mapping[Any, float], score: str) -> Estimate | None:
        """Returns a weighted sum of scores; None if one is missing or they do not compare."""
        ...

    def difference(self, a: Any, b: Any, score: str) -> Estimate | None:
        """Returns score(B) - score(A); None if one is missing or they do not compare."""
        return self.contrast({b: 1.0, a: -1.0}, score)

    def untestable(self, rows: Iterable[Any], score: str) -> str:
        """Returns the reason why the rows' scores cannot test anything; "": they can."""
        return ""

    def curves(self, row: Any) -> dict[int, dict[int, np.ndarray]]:
        """Returns seed -> maximum length -> [K, 2] validation losses by seconds, of a row."""
        return {}

    def passes(self, row: Any) -> list[float | None]:
        """Returns each pre-training's passes over its corpus; None: that is not recorded."""
        return []

    def floor(self, score: str) -> float | None:
        """Returns the score of the best constant answer; None: not known."""
        return None

    def remarks(self, scores: Iterable[str]) -> list[str]:
        """Returns remarks on some scores, such as values that could not be used."""
        return []


@dataclasses.dataclass(frozen=True)
class Treatment:
    """An objective's validation metric and the trivial baseline that it must beat."""

    metric: str  # a name in a run's validation, such as "nsp_accuracy"
    baseline: float | None  # the trivial value; None: the unigram entropy of the run's corpus
    margin: float  # by which the metric must be better
    higher_is_better: bool = False  # whether it must lie above the baseline

    def failure(self, metrics: Mapping[str, float]) -> str:
        """Returns how the metric misses its baseline; "" if it beats it or cannot be checked."""
        value = metrics.get(self.metric)
        trivial = metrics.get(UNIGRAM) if self.baseline is None else self.baseline
        if value is None or trivial is None:
            return ""
        gain = value - trivial if self.higher_is_better else trivial - value
        if gain >= self.margin:
            return ""
        name = "chance" if self.baseline is not None else "the unigram entropy"
        return f"{self.metric} {value:.3g} against {trivial:.3g} of {name}, margin {self.margin:g}"


class Comparison(Protocol):
    """The members of a comparison's module.

    Attributes:
      HYPOTHESES: id -> (evidence, score) -> finding without verdict.
      TREATMENTS: checks that each pre-training objective beats its trivial baseline.
      TABLES: kind -> request -> table; None: nothing to show.
      FIGURES: name -> (study, evidence, published) -> figure; None: nothing to show.
    """

    HYPOTHESES: Mapping[str, Callable[[Evidence, str], Finding]] = {}
    TREATMENTS: Sequence[Treatment] = ()
    TABLES: "Mapping[str, Callable[[TableRequest], Table | None]]" = {}
    FIGURES: "Mapping[str, Callable[[Study, Evidence, Evidence | None], Figure | None]]" = {}

    def published(self) -> Evidence | None:
        """Returns published numbers to show beside the study's; None if there are none."""

    def departures(self, study: Study, footnotes: Sequence[str]) -> list[str]:
        """Returns why published numbers may not stand beside the study's; []: they may."""
        return []


class NoComparison(Comparison):
    """The comparison of a study that names none: no statements, no tables or figures of its own."""


def load_comparison(name: str | None) -> Comparison:
    """Imports the comparison that a study names; None: one without statements.

    Raises:
      ValueError: there is no such module, or it lacks a member of `Comparison`.
    """
    if name is None:
        return NoComparison()
    try:
        if not isinstance(name, str):
            raise ValueError("it is no module's name")
        module = importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"config.comparison {name!r} cannot be imported: {error}") from None
    missing = [member for member in MEMBERS if not hasattr(module, member)]
    if missing:
        raise ValueError(f"config.comparison {name!r} lacks {', '.join(missing)}")
    return cast(Comparison, module)


def check(score: str) -> None:
    """Raises a ValueError if there is no such score."""
    if score not in SCORES:
        raise ValueError(f"unknown score {score!r}: expected one of {', '.join(SCORES)}")


def parts_of(score: str) -> tuple[str, ...]:
    """Returns the scores of which a score is the mean."""
    return MEANS.get(score, (score,))
