"""ERNIE, `transformers`' ErnieFor...: Sun et al. 2019. It has BERT's names, and no pair head."""

import dataclasses

from scalelab.interop.mapping import Fixed
from scalelab.interop.maps import bert

BERT = bert.make("ernie", "Ernie")
MAP = dataclasses.replace(
    BERT,
    fixed=(*BERT.fixed, Fixed("use_task_id", (False,), False, "it has no task embedding")),
    architectures=tuple(a for a in BERT.architectures if "nsp" not in a.heads),
)
