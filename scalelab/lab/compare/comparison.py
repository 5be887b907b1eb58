"""A comparison with statements of its own: the protocol that a study names as data.

`config.comparison` of a study is the dotted name of a module that satisfies `Comparison`, such as
"scalelab.thesis.comparison" or a user's own. The lab imports it by that name and renders what it
brings: hypotheses with their verdicts, kinds of tables, figures, and numbers to print beside.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from scalelab.lab.compare.claims import Finding
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.compare.treatment import Treatment
from scalelab.lab.load.study_runs import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from scalelab.lab.show.score_tables import TableRequest
    from scalelab.lab.show.tables import Table

MEMBERS = ("HYPOTHESES", "TREATMENTS", "TABLES", "FIGURES", "published", "departures")


class Comparison(Protocol):
    """What a study's comparison brings.

    Attributes:
      HYPOTHESES: id -> (evidence, score) -> finding without verdict.
      TREATMENTS: checks that each pre-training objective beats its trivial baseline.
      TABLES: kind -> request -> table; None: nothing to show.
      FIGURES: name -> (study, evidence, published) -> figure; None: nothing to show.
    """

    HYPOTHESES: Mapping[str, Callable[[Evidence, str], Finding]]
    TREATMENTS: Sequence[Treatment]
    TABLES: "Mapping[str, Callable[[TableRequest], Table | None]]"
    FIGURES: "Mapping[str, Callable[[Study, Evidence, Evidence | None], Figure | None]]"

    def published(self) -> Evidence | None:
        """Returns numbers to stand beside the study's; None: there are none."""
        ...

    def departures(self, study: Study, footnotes: Sequence[str]) -> list[str]:
        """Returns why published numbers may not stand beside the study's; []: they may."""
        ...


class NoComparison:
    """The comparison of a study that names none: no statements, no tables or figures of its own."""

    HYPOTHESES: Mapping[str, Callable[[Evidence, str], Finding]] = {}
    TREATMENTS: Sequence[Treatment] = ()
    TABLES: "Mapping[str, Callable[[TableRequest], Table | None]]" = {}
    FIGURES: "Mapping[str, Callable[[Study, Evidence, Evidence | None], Figure | None]]" = {}

    def published(self) -> None:
        """Returns None."""

    def departures(self, study: Study, footnotes: Sequence[str]) -> list[str]:
        """Returns []."""
        return []


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
