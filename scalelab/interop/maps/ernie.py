"""ERNIE, `transformers`' ErnieFor...: Sun et al. 2019. It has BERT's names, and no pair head."""

import dataclasses

from scalelab.interop.mapping import Architecture, Fixed
from scalelab.interop.maps import bert

BERT = bert.make("ernie", "Ernie")
MAP = dataclasses.replace(
    BERT,
    fixed=(*BERT.fixed, Fixed("use_task_id", (False,), False, "it has no task embedding")),
    heads={"knowledge_mlm": BERT.heads["mlm"], "classify": BERT.heads["classify"]},
    architectures=(
        Architecture("ErnieForMaskedLM", ("knowledge_mlm",), "masked"),
        Architecture("ErnieForSequenceClassification", ("classify",)),
    ),
)
