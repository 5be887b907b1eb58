"""The benchmark protocol field by field, and the differences of a study from it.

Tables show published numbers next to ours only if a study has no difference. Brackets name sections
of the thesis. The thesis leaves some choices open:

| open in the thesis | here |
|---|---|
| the documents of each phase (7.2) | a seeded hash, so that Table 7.1's example counts come out |
| short examples of SEGMENT-PAIR | 10% get a target length uniform in [2, max], as BERT |
| weight decay | 0.01, decoupled, not on biases and norms |
| schedule | one linear warm-up and decay over both phases |
| gradient clipping | 1.0, as BERT |
| validation | 2,000 examples every 1,000 steps; masks from one fixed key |
| fine-tuning optimizer, schedule, batching | see the table in scalelab/tasks/recipes.py |
| auxiliary LM loss of GPT-2-style (5.4) | weight 0.5, as Radford et al. 2018 |
| QQP in GLUE-Large | accuracy ("large") and F1 ("large_f1"), both reported |
| seeds | one, as the thesis; hypotheses need two or more |

A corpus is recognized by its layout and by the number of examples of an epoch; the data of a task
is recognized by the remarks of its fine-tuning runs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config.fields import science
from scalelab.lab.compare import comparability
from scalelab.lab.load.study_runs import Study
from scalelab.thesis import published
from scalelab.thesis.phases import read_phases

CORPUS = "wikitext:"  # WikiText-103 raw, in its own layout (6.1)
PRETRAINING = {
    "init": None, "mask_rate": 0.15, "mask_copies": None,  # 7.1 to 7.3
    "model.ffn_width": None, "model.max_len": 512, "model.dropout_rate": 0.1,
    "model.dtype": "float32", "model.output_embedding": None,
    "tokenizer.vocab_size": 30_000, "tokenizer.lowercase": False,
    "data.errors": "strict", "data.keep_headings": False,
    "data.valid_rate": 0.005, "data.order_seed": None,
    "short.max_len": 128, "short.batch_size": 64,
    "long.max_len": 512, "long.batch_size": 16, "long.epoch_rate": None,
    "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-6, "optim.weight_decay": 0.01,
    "optim.clip_norm": 1.0, "optim.schedule": "linear", "optim.warmup_steps": 1000,
    "eval.every_steps": 1000, "eval.num_examples": 2000,  # ours
}  # fmt: skip
_FIELDS = (
    "objective", "tokenizer.kind", "data.format", "optim.learning_rate", "optim.total_epochs",
    "long.example_rate",  # follows from Table 7.1
)  # fmt: skip
_SYSTEM_VALUES = {  # 5, 6.2.1, 7.2, 7.3
    "bert": ("mlm+nsp", "wordpiece", "segment_pair", 1e-4, 6.0, 0.10262),
    "roberta": ("mlm", "bytebpe", "doc_sentences", 1e-4, 10.0, 0.08713),
    "gpt2": ("clm", "bytebpe", "doc_sentences", 2.5e-4, 10.0, 0.08713),
}
SYSTEMS = {name: dict(zip(_FIELDS, values, strict=True)) for name, values in _SYSTEM_VALUES.items()}
SYSTEMS["bert"]["format_options.short_rate"] = 0.1
VARIANTS = {  # 7.5.4, 7.5.5; "x0.5" multiplies
    "default": {},
    "half_steps": {"optim.total_epochs": "x0.5"},
    "half_batch": {
        "optim.total_epochs": "x0.5", "short.batch_size": "x0.5", "long.batch_size": "x0.5",
    },
    "short_only": {"long.epoch_rate": 0.0},
    "fewer_epochs": {"optim.total_epochs": 5.0},
    "fewer_long_epochs": {"optim.total_epochs": 5.0, "long.epoch_rate": 0.6},
}  # fmt: skip
FINETUNING = {  # 7.4
    "recipe": "thesis", "epochs": 3.0, "batch_size": 16, "max_len": 512,
    "max_train_examples": None, "group_batches": 50, "dropout_rate": 0.1, "lm_weight": 0.5,
    "feature_layers": None, "eval_every_epochs": 1.0, "patience": None, "order_seed": None,
    "weights_seed": None, "head.kind": "double", "head.dropout_rate": 0.1, "head.pretrained": True,
    "optim.learning_rate": 2e-5, "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-6,
    "optim.weight_decay": 0.01, "optim.clip_norm": 1.0, "optim.schedule": "linear",
    "optim.warmup_rate": 0.0, "optim.layer_decay": None,
}  # fmt: skip
OWN = ("system", "seed", "model.num_heads", "model.width", "model.num_layers", "data.corpus")
# A different sentence splitter or tokenizer changes counts by less, another corpus by more.
COUNT_CLOSE = 0.1
# What the official files have; and unknown words, which depend on the tokenizer alone.
HARMLESS = re.compile("empty texts|broken lines left out|are unknown to the tokenizer")


def departures(study: Study, footnotes: Sequence[str] = ()) -> list[str]:
    """Returns the differences of a study from the protocol; [] allows to show published numbers.

    Only rows with a published number are checked.

    Args:
      study: the study.
      footnotes: of the check of comparability; those on fields that are not known to be equal do
        not count as differences.
    """
    facts = study.facts
    if facts.scale != "full":
        return [f"scale {facts.scale}"]
    known = {row.key for row in published.read_scores().rows}
    runs = [(p, run) for p in study.points if p.key in known for run in p.runs]
    found = []
    for point, run in runs:
        fields = science(run.config)
        if not str(fields.get("data.corpus")).startswith(CORPUS):
            found.append(f"data.corpus is {fields.get('data.corpus')} (protocol: WikiText-103)")
        own = {field: value for field, value in fields.items() if field not in OWN}
        found += _differing(own, expected(point.system, point.variant))
    for point, run in runs if not found else ():  # otherwise an epoch may have another length
        for phase in read_phases(run) if run.finished else ():
            printed = published.epochs().get((point.system, phase.name))
            size = phase.epoch_sequences
            if printed and size and not math.isclose(size, printed.sequences, rel_tol=COUNT_CLOSE):
                found.append(
                    f"an epoch of {point.system} has {size:,} sequences of {phase.max_len}"
                    f" (protocol: {printed.sequences:,}, WikiText-103)"
                )
    if facts.tasks and runs:
        chosen = {field: FINETUNING.get(field) for field in facts.chosen}
        found += [f"finetune.{field} is chosen on dev" for field in chosen]
        for task in facts.tasks:
            fields = facts.adaptation.get(task)
            if fields is None:
                found.append(f"how {task} is fine-tuned is not recorded")
            else:
                found += _differing(science(fields) | chosen, FINETUNING, "finetune.")
        seeds = (seed for _, run in runs if run.finished
                 for task in run.tuned["tasks"].values() for seed in task.runs)  # fmt: skip
        remarks = [remark for seed in seeds if seed.result for remark in seed.result.remarks]
        found += [remark for remark in remarks if not HARMLESS.search(remark)]
    if any(note.startswith(comparability.ALLOWED) for note in footnotes):
        found.append("runs differ in fields that config.allow names")
    return list(dict.fromkeys(found))


def expected(system: str, variant: str) -> dict[str, Any]:
    """Returns the protocol's values of the fields that determine a pre-training, except OWN."""
    fields = PRETRAINING | SYSTEMS[system]
    for field, value in VARIANTS[variant].items():
        scaled = isinstance(value, str)
        before = fields[field]
        fields[field] = type(before)(before * float(value[1:])) if scaled else value
    return fields


def _differing(own: Mapping[str, Any], printed: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Returns the fields that differ; a missing field counts as None."""
    return [
        f"{prefix}{field} is {own.get(field)} (protocol: {printed.get(field)})"
        for field in sorted(own.keys() | printed.keys()) if own.get(field) != printed.get(field)
    ]  # fmt: skip
