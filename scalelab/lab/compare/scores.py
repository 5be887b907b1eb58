"""The interface between a study and its comparison: rows, scores by name, hypotheses.

`config.comparison` of a study is the dotted name of a module that satisfies `Comparison`, such as
"scalelab.thesis.comparison" or a user's own. The lab imports it by that name and renders its
hypotheses with their verdicts, its tables and figures, and published numbers to print beside.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from scalelab.lab.compare.claims import Finding, Treatment
from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.load.study_runs import Row, Study

Block = Mapping[Row, float]  # weights of rows
REQUIRED = ("HYPOTHESES", "TABLES", "FIGURES", "CAPTIONS", "published", "departures")


class Scores(Protocol):
    """The scores of a study, or printed ones."""

    @property
    def rows(self) -> Sequence[Row]:
        """All rows, in the order of tables."""
        ...

    def value(self, row: Row, score: str) -> Estimate | None:
        """Returns the score of a row; None if there is none."""
        ...

    def contrast(self, weights: Mapping[Row, float], score: str) -> Estimate | None:
        """Returns a weighted sum of scores; None if one is missing or they do not compare."""
        ...

    def difference(self, a: Row, b: Row, score: str) -> Estimate | None:
        """Returns score(B) - score(A); None if one is missing or they do not compare."""
        return self.contrast({b: 1.0, a: -1.0}, score)

    def check_treatment(self, rows: Iterable[Row], score: str) -> Treatment:
        """Returns why the rows' scores can test nothing, and what was not checked."""
        return Treatment()

    def curves(self, row: Row) -> dict[int, dict[int, np.ndarray]]:
        """Returns seed -> maximum length -> [K, 2] validation losses by seconds, of a row."""
        return {}

    def passes(self, row: Row) -> list[float | None]:
        """Returns each pre-training's passes over its corpus; None: that is not recorded."""
        return []

    def remarks(self, scores: Iterable[str]) -> list[str]:
        """Returns remarks on some scores, such as values that could not be used."""
        return []


class Comparison:
    """Hypotheses, tables and figures of a comparison module; empty by default."""

    # id -> scores -> finding without verdict.
    HYPOTHESES: Mapping[str, Callable[[Scores], Finding]] = {}
    # kind -> request -> table; None: nothing to show.
    TABLES: Mapping[str, Callable[[Any], Any]] = {}
    # name -> (study, scores, published) -> figure; None: nothing to show.
    FIGURES: Mapping[str, Callable[[Study, Scores, Scores | None], Any]] = {}
    CAPTIONS: Mapping[str, str] = {}  # figure -> its caption

    def published(self) -> Scores | None:
        """Returns published numbers to show beside the study's; None if there are none."""

    def remarks(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Returns a remark for some hypotheses, such as their verdict on published numbers."""
        return {}

    def departures(self, study: Study, footnotes: Sequence[str]) -> list[str]:
        """Returns why published numbers may not stand beside the study's; []: they may."""
        return []


def load_comparison(name: str | None, trusted: str | None = None) -> Comparison:
    """Imports the comparison module that a study names; None: an empty comparison.

    Raises:
      ValueError: there is no such module, or it lacks a member of `Comparison`; or it is not of
        scalelab, and the user has not named it as `trusted`: a received study must not run code.
    """
    if name is None:
        return Comparison()
    if not str(name).startswith("scalelab.") and name != trusted:
        raise ValueError(f"the study imports {name!r}; if you trust it: --comparison={name}")
    try:
        module = importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"config.comparison {name!r} cannot be imported: {error}") from None
    missing = [member for member in REQUIRED if not hasattr(module, member)]
    if missing:
        raise ValueError(f"config.comparison {name!r} lacks {', '.join(missing)}")
    return cast(Comparison, module)


def mean_weights(blocks: Sequence[Block]) -> dict[Row, float]:
    """Returns the weights of rows in the mean of some blocks."""
    found: dict[Row, float] = {}
    for row, weight in (item for block in blocks for item in block.items()):
        found[row] = found.get(row, 0.0) + weight / len(blocks)
    return found
