"""ERNIE, `transformers`' ErnieFor...: Sun et al. 2019. Names are BERT's; no pair head.

With task ids (Sun et al. 2020, "ERNIE 2.0") there is one more table, indexed by `task_type_ids`.
"""

import dataclasses

from scalelab.interop.mapping import Architecture, Field, row
from scalelab.interop.maps import bert

BERT = bert.make("ernie", "Ernie")
MAP = dataclasses.replace(
    BERT,
    options=(
        Field("num_segments", "type_vocab_size", 2),
        Field("num_tasks", "task_type_vocab_size", 3, switch="use_task_id"),
    ),
    extras=("tasks",),
    fixed=tuple(fixed for fixed in BERT.fixed if fixed.key != "type_vocab_size"),
    heads={
        "knowledge_mlm": BERT.heads["mlm"],
        "classify": BERT.heads["classify"],
        "tasks": (row("embed/tasks/table", "ernie.embeddings.task_type_embeddings.weight"),),
    },
    architectures=(
        Architecture("ErnieForMaskedLM", ("knowledge_mlm",), "masked"),
        Architecture("ErnieForSequenceClassification", ("classify",)),
    ),
)
