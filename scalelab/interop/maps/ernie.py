"""ERNIE, `transformers`' ErnieFor...: Sun et al. 2019. It has BERT's names, and no pair head."""

import dataclasses

from scalelab.interop.mapping import Architecture, Field, Fixed
from scalelab.interop.maps import bert

BERT = bert.make("ernie", "Ernie")
MAP = dataclasses.replace(
    BERT,
    options=(Field("num_segments", "type_vocab_size", 2),),
    required={"num_tasks": None},
    fixed=(
        *(fixed for fixed in BERT.fixed if fixed.key != "type_vocab_size"),
        Fixed("use_task_id", (False,), False, "imports have no task ids"),
    ),
    heads={"knowledge_mlm": BERT.heads["mlm"], "classify": BERT.heads["classify"]},
    architectures=(
        Architecture("ErnieForMaskedLM", ("knowledge_mlm",), "masked"),
        Architecture("ErnieForSequenceClassification", ("classify",)),
    ),
)
