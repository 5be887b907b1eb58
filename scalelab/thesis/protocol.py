"""Where a study departs from the benchmark protocol, whose numbers then do not stand beside ours.

The fields of its pre-trainings and fine-tunings are held to those below, which are the protocol's
(sections of the thesis in brackets) and, where that is silent, what scalelab has decided for it
(ours). Its corpus is told by its layout and by the examples of an epoch, its tasks' data by what
every fine-tuning says of it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalelab.config.fields import flatten
from scalelab.lab.compare import comparability
from scalelab.lab.reading import phases
from scalelab.lab.reading.study_runs import Point, Study
from scalelab.thesis import published

CORPUS = "wikitext:"  # WikiText-103 raw, in its own layout (6.1)
PRETRAINING = {
    "init": None, "mask_rate": 0.15,  # 7.1 to 7.3
    "net.ffn_width": None, "net.max_len": 512, "net.dropout_rate": 0.1, "net.dtype": "float32",
    "net.output_embedding": None,
    "tokenizer.vocab_size": 30_000, "tokenizer.lowercase": False,
    "data.errors": "strict", "data.keep_headings": False, "data.short_rate": 0.1,
    "data.valid_rate": 0.005, "data.order_seed": None,
    "short.max_len": 128, "short.batch_size": 64,
    "long.max_len": 512, "long.batch_size": 16, "long.example_rate": 0.1, "long.epoch_rate": None,
    "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-6, "optim.weight_decay": 0.01,
    "optim.clip_norm": 1.0, "optim.schedule": "linear", "optim.warmup_steps": 1000,
    "eval.every_steps": 1000, "eval.num_examples": 2000,  # ours
}  # fmt: skip
_FIELDS = (
    "objective", "tokenizer.kind", "data.format", "optim.learning_rate", "optim.total_epochs"
)  # fmt: skip
SYSTEMS = {  # 5, 6.2.1, 7.2, 7.3
    "bert": dict(
        zip(_FIELDS, ("mlm+nsp", "wordpiece", "segment_pair", 1e-4, 6.0), strict=True)
    ),
    "roberta": dict(zip(_FIELDS, ("mlm", "bytebpe", "doc_sentences", 1e-4, 10.0), strict=True)),
    "gpt2": dict(zip(_FIELDS, ("clm", "bytebpe", "doc_sentences", 2.5e-4, 10.0), strict=True)),
}  # fmt: skip
VARIANTS = {  # 7.5.4, 7.5.5; "x0.5" multiplies
    "baseline": {},
    "half_steps": {"optim.total_epochs": "x0.5"},
    "half_batch": {
        "optim.total_epochs": "x0.5", "short.batch_size": "x0.5", "long.batch_size": "x0.5",
    },
    "short_only": {"long.epoch_rate": 0.0},
    "fewer_epochs": {"optim.total_epochs": 5.0},
    "fewer_long_epochs": {"optim.total_epochs": 5.0, "long.epoch_rate": 0.6},
}  # fmt: skip
FINETUNING = {  # 7.4; what it leaves open is ours
    "recipe": "thesis", "epochs": 3.0, "batch_size": 16, "max_len": 512,
    "max_train_examples": None, "group_batches": 50, "dropout_rate": 0.1, "lm_weight": 0.5,
    "feature_layers": None, "eval_every_epochs": 1.0, "patience": None, "order_seed": None,
    "weights_seed": None, "head.kind": "double", "head.dropout_rate": 0.1, "head.pretrained": True,
    "optim.learning_rate": 2e-5, "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-6,
    "optim.weight_decay": 0.01, "optim.clip_norm": 1.0, "optim.schedule": "linear",
    "optim.warmup_rate": 0.0, "optim.layer_decay": None,
}  # fmt: skip
OWN = ("system", "seed", "net.num_heads", "net.width", "net.num_layers", "data.corpus")
# Another splitter of sentences, or tokenizer, gives other counts; another corpus others still.
COUNT_CLOSE = 0.1
HARMLESS = re.compile("empty texts|broken lines left out")  # the official files have them
SHOWN = 8


def departures(study: Study, footnotes: Sequence[str] = ()) -> list[str]:
    """Where a study is not the protocol, in words; [] where published numbers compare.

    Looked at are the rows that have a published number, whatever else a study has.

    Args:
      study: as read.
      footnotes: of the comparability contract; what it does not know to be equal is no departure.
    """
    facts = study.facts
    if facts["scale"] != "full":
        return [f"scale {facts['scale']}"]
    known = {row.label for row in published.evidence().rows}
    points = [point for point in study.points if point.label in known]
    found = [line for point in points for line in _of_fields(point)]
    if not found:  # else an epoch may be of another length
        found += [line for point in points for line in _of_epochs(point)]
    if facts["tasks"] and points:
        found += _of_finetuning(facts)
        found += [line for point in points for line in _of_task_data(point)]
    allowed = any(note.startswith(comparability.ALLOWED) for note in footnotes)
    found += ["runs differ in what --allow names"] if allowed else []
    return list(dict.fromkeys(found))


def said(found: Sequence[str]) -> str:
    """The sentence that stands where published numbers would."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (
        "Not the protocol, so that no published number stands beside ours:"
        f" {'; '.join(found[:SHOWN])}{more}."
    )


def expected(system: str, variant: str) -> dict[str, Any]:
    """The science fields of a pre-training of the protocol, but for OWN.

    Args:
      system: a name in SYSTEMS.
      variant: a name in VARIANTS.
    """
    fields = PRETRAINING | SYSTEMS[system]
    for field, value in VARIANTS[variant].items():
        scaled = isinstance(value, str)
        before = fields[field]
        fields[field] = type(before)(before * float(value[1:])) if scaled else value
    return fields


def _of_fields(point: Point) -> Iterator[str]:
    """Fields of a row's runs."""
    wanted = expected(point.system, point.variant)
    for run in point.runs:
        fields = _science(run.config)
        corpus = fields.get("data.corpus")
        if not str(corpus).startswith(CORPUS):
            yield f"data.corpus is {corpus} (protocol: WikiText-103)"
        yield from _differing({k: v for k, v in fields.items() if k not in OWN}, wanted)


def _of_epochs(point: Point) -> Iterator[str]:
    """Examples of an epoch: those of WikiText-103 are known (Table 7.1)."""
    for run in point.finished:
        for phase in phases.of_run(run):
            printed = published.epochs().get((point.system, phase.name))
            ours = phase.epoch_sequences
            if not printed or ours is None:
                continue
            if not math.isclose(ours, printed.sequences, rel_tol=COUNT_CLOSE):
                yield (
                    f"an epoch of {point.system} has {ours:,} sequences of {phase.max_len}"
                    f" (protocol: {printed.sequences:,}, WikiText-103)"
                )


def _of_finetuning(facts: Mapping[str, Any]) -> Iterator[str]:
    """Fields of all fine-tunings of a study, as planned, which the contract holds them to."""
    for field in facts.get("chosen") or ():
        yield f"finetune.{field} is chosen on dev"
    for task in facts["tasks"]:
        fields = (facts.get("adaptation") or {}).get(task)
        if fields is None:
            yield f"how {task} is fine-tuned is not recorded"
        else:
            chosen = {k: FINETUNING.get(k) for k in facts.get("chosen") or ()}
            yield from _differing(_science(fields) | chosen, FINETUNING, "finetune.")


def _of_task_data(point: Point) -> Iterator[str]:
    """Sets of tasks that are not the official ones, as fine-tunings remark."""
    for run in point.finished:
        for task in run.tasks.values():
            for remark in (x for one in task.runs for x in one.result.get("remarks") or ()):
                if not HARMLESS.search(remark):
                    yield remark


def _differing(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    """Fields in which two differ; one that is not there is off, which is None."""
    for field in sorted(ours.keys() | theirs.keys()):
        if ours.get(field) != theirs.get(field):
            yield f"{prefix}{field} is {ours.get(field)} (protocol: {theirs.get(field)})"


def _science(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that may change a result, by dotted name."""
    return {k: v for k, v in flatten(config).items() if not k.startswith("machine.")}
