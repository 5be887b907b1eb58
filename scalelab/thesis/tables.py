"""Tables in the layout of the thesis, chapter 7.

  data              tokens of an epoch and of the training, by phase   (Table 7.1)
  large             GLUE-Large and the large tasks                     (7.2, 7.3, 7.4, 7.8)
  small             the four small tasks                               (B.1, B.2, B.3, B.5)
  strategies        variants of one model: time and the large tasks    (7.5)
  strategies_small  the same with the small tasks                      (B.4)

Tables 7.6 and 7.7 are the tables `grid` and `cost` of every study. The thesis prints MNLI as
"m/mm"; here it has two columns, so that each has its interval.
"""

from functools import partial

from scalelab.lab.show.score_tables import LARGE, SMALL, TIME, MakeTable, build_scores
from scalelab.thesis import data_table

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
