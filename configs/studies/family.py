"""Every Transformer that reads one text and has no memory, at one shape: the family table.

  python -m scalelab.study run --workdir=runs/family \
    --config=configs/studies/family.py:corpus=wikitext:DIR,data=GLUE,evaluations=EVALUATIONS

Each system has its own tokenizer, objective, format and fine-tuning recipe. All have one learning
rate and no dropout. Two stages:
  tokens   all systems at equal tokens
  flops    at the FLOPs that BERT has in the first stage: the systems whose FLOPs a token are not
           within 5% of BERT's

Arguments, all optional, joined by commas: corpus, data, evaluations and seeds of configs/study.py,
`tokens` for another budget, and a `scale`:

| scale | shape | vocabulary | tokens | seeds | for |
|---|---|---|---|---|---|
| nano (default) | 2x128x2 | 8,192 | 30 M | 2 | a laptop, or minutes on a GPU |
| micro | 2x32x2 | 2,000 | 0.1 M | 2 | a test of the whole path in minutes |
| medium | 2x256x9 | 8,192 | 300 M | 2 | a GPU; four times nano's batch; not run yet |
| synthetic | 2x64x2 | 600 | 3 M | 2 | a language of known rules; minutes a run, no data needed |

At nano BERT's pre-training takes 32 minutes of a core; GPT-2's has 2.5 times its FLOPs. At micro,
without `data`, the tasks are `same_document` and `swapped_words`, made of the corpus. At
synthetic the text is the grammar corpus of `scalelab.worlds`, and scores are its minimal pairs and
two of its tasks; the first start writes them to ~/.cache/scalelab/worlds. With `evaluations=`,
nano, micro and medium are scored by EVALUATIONS.
Lengths are 32 tokens, then 128 (synthetic: 64); configs/studies/encoders.py says why.
docs/evaluations.md says which evaluations stay out, and why. To add a system, add its name to
SYSTEMS, and to OTHER_FLOPS if its FLOPs differ by more. A study with fewer systems needs its own
hypotheses, or config.hypotheses = ().
"""

import re

import ml_collections

from scalelab.config import files

SYSTEMS = (
    "bert", "roberta", "albert", "electra", "spanbert", "ernie", "unilm", "bert_ltr", "gpt", "gpt2",
    "gpt_bert",
)  # fmt: skip
OTHER_FLOPS = ("electra", "bert_ltr", "gpt", "gpt2", "gpt_bert")
SCALES = {  # shape, tokens, and FLOPs of BERT with these tokens
    "nano": ("2x128x2", 30e6, 1.116e14),
    "micro": ("2x32x2", 1e5, 3.07e10),
    "medium": ("2x256x9", 300e6, 1.475e16),
    "synthetic": ("2x64x2", 3e6, 2.298e12),
}
EVALUATIONS = (
    "blimp", "agreement", "syntaxgym", "cats", "copa", "wsc", "crows_pairs", "winogender",
    "lambada", "probes.pos", "probes.dep", "probes.spans", "probes.distance", "probes.depth",
)  # fmt: skip
CLAIMED = {
    "pairs": "pairs", "blimp": "blimp", "probes.pos": "probes.pos",
    "mnli": "mnli_m", "qnli": "qnli", "sst2": "sst2",
}  # fmt: skip


def settings(arguments: str) -> tuple[ml_collections.ConfigDict, str, float]:
    """Returns a study without stages at the scale asked for, its shape and BERT's FLOPs."""
    study = files.load(files.FOLDER / "study.py")
    given = files.arguments(arguments, (*study.ARGUMENTS, "tokens"), "scale=nano")
    scale, budget = given.pop("scale", "nano"), given.pop("tokens", None)
    if scale not in SCALES:
        raise ValueError(f"scale {scale!r}: expected one of {', '.join(SCALES)}")
    shape, tokens, flops = SCALES[scale]
    if budget is not None:
        if not re.fullmatch(r"[1-9][\d.]*(e\d+)?", budget):
            raise ValueError(f"tokens={budget}: expected a number of tokens, such as 10e6")
        tokens, flops = float(budget), flops * float(budget) / tokens
    quickstart = files.load(files.FOLDER / "studies/quickstart.py")
    if scale == "synthetic" and "corpus" not in given:
        folder = quickstart.make_world(documents=20_000, tasks_examples=10_000)
        made = {
            "corpus": f"wikitext:{folder}",
            "data": f"{folder}/glue",
            "evaluations": str(folder),
        }
        given = made | given
    if scale == "synthetic" and not {"data", "evaluations"} <= given.keys():
        raise ValueError("scale=synthetic has its own text: with corpus=, give data=, evaluations=")
    base = {"micro": "tiny", "synthetic": "small"}.get(scale, "medium")
    rest = [f"{name}={text.replace(',', ',,')}" for name, text in given.items()]
    config = study.get_config(",".join([f"scale={base}", *rest]))
    config.scale = scale
    if scale == "synthetic":
        quickstart.use_world(config, tokens)
        config.system_fields.albert = ("tokenizer.kind=wordpiece",)  # unigram finds 501 pieces
    else:
        _shorten(config.pretrain, scale, tokens)
    config.fields += ("model.dropout_rate=0.0",)
    config.finetune.tasks = ("sst2", "qnli", "mnli", "qqp")
    config.finetune.seeds = 1
    if scale == "synthetic":
        config.finetune.tasks = ("qnli", "mnli")
        config.finetune.fields = (
            "max_len=64", "epochs=6", "optim.learning_rate=1e-3", "eval_every_epochs=6",
        )  # fmt: skip
    elif scale != "micro":
        config.finetune.fields = ("eval_every_epochs=3",)
    elif config.finetune.data is None:
        config.finetune.data, config.finetune.tasks = "probes", ("same_document", "swapped_words")
    if scale == "synthetic":
        config.evaluations = ("pairs",)
    elif config.evaluation_data is not None:
        config.evaluations, config.evaluation_fields = EVALUATIONS, ("blimp.per_group=200",)
    config.tables = ("evaluations", "tasks", "scratch", "loss")
    return config, shape, flops


def at_synthetic(arguments: str, **defaults: str) -> tuple[ml_collections.ConfigDict, str, float]:
    """Returns `settings` at scale=synthetic, without tasks, for studies of that scale alone."""
    study = files.load(files.FOLDER / "study.py")
    given = files.arguments(arguments, (*study.ARGUMENTS, "tokens"), "seeds=5")
    if given.get("scale", "synthetic") != "synthetic":
        raise ValueError("the study has one scale, synthetic: leave scale= out")
    given = {"scale": "synthetic"} | defaults | given
    config, shape, flops = settings(
        ",".join(f"{name}={text.replace(',', ',,')}" for name, text in given.items())
    )
    config.finetune.tasks, config.finetune.scratch = (), False
    return config, shape, flops


def _shorten(pretrain: ml_collections.ConfigDict, scale: str, tokens: float) -> None:
    """Sets the budget, and the lengths for real text."""
    pretrain.optim.total_tokens, pretrain.optim.warmup_tokens = tokens, tokens / 20
    if scale != "micro":
        pretrain.short.max_len, pretrain.long.max_len, pretrain.model.max_len = 32, 128, 128
        pretrain.eval.every_steps = 2000
    if scale == "medium":
        pretrain.short.batch_size, pretrain.long.batch_size = 128, 32


def ladder(arguments: str) -> tuple[ml_collections.ConfigDict, str, float]:
    """Returns `settings` with fewer scores, for ladder_*.py, objectives_8.py and mask_rate.py.

    The family's table has the models from scratch; they would be the same here.
    """
    config, shape, flops = settings(arguments)
    config.finetune.scratch = False
    config.finetune.tasks = tuple(task for task in config.finetune.tasks if task != "qqp")
    if config.evaluations and config.scale != "synthetic":
        config.evaluations = ("blimp", "probes.pos")
    config.tables = ("evaluations", "tasks", "loss")
    return config, shape, flops


def add_stages(
    config: ml_collections.ConfigDict, shape: str, stages: dict[str, tuple[str, ...]]
) -> None:
    """Adds a stage for each system, with its variants, all fine-tuned."""
    for system, variants in stages.items():
        config.stages[system] = dict(
            systems=(system,), shapes=(shape,), variants=variants, finetune="all"
        )
    config.stage_order = tuple(config.stages)


def equal_flops(config: ml_collections.ConfigDict, flops: float) -> tuple[str, ...]:
    """Returns the fields of a run whose budget is in FLOPs, with the study's share of warm-up."""
    optim = config.pretrain.optim
    warmup = flops * optim.warmup_tokens / optim.total_tokens
    off = "optim.total_tokens=None", "optim.warmup_tokens=None"
    return (*off, f"optim.total_flops={flops:g}", f"optim.warmup_flops={warmup:g}")


def hypotheses(config: ml_collections.ConfigDict, *lines: str) -> tuple[tuple[str, str], ...]:
    """Returns each line, such as "albert > bert", for each score that a ladder is about."""
    measured = (*config.evaluations, *config.finetune.tasks)
    scores = [score for name, score in CLAIMED.items() if name in measured]
    return tuple((line, score) for line in lines for score in scores)


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    config, shape, flops = settings(arguments)
    config.name = "family"
    config.title = "Every system at one shape"
    config.question = "Which system is best at what, at equal tokens and at equal FLOPs?"
    config.variants.equal_flops = equal_flops(config, flops)
    config.stages.tokens = dict(
        systems=SYSTEMS, shapes=(shape,), variants=("default",), finetune="all"
    )
    # In larger models the FLOPs a token of these are within 5% of BERT's.
    in_small_nets = {"nano": ("spanbert",), "synthetic": ("spanbert", "albert")}
    others = OTHER_FLOPS + in_small_nets.get(config.scale, ())
    config.stages.flops = dict(
        systems=others, shapes=(shape,), variants=("equal_flops",), finetune="all"
    )
    config.stage_order = ("tokens", "flops")
    config.allow = ("matched",)  # the second stage has another clock
    config.figures = ("loss_by_tokens", "loss_by_flops")
    # Claims that the papers of RoBERTa, BERT, ALBERT (at one shape) and ELECTRA make.
    config.hypotheses = hypotheses(
        config,
        "roberta default > bert default",
        "bert default > gpt default",
        "bert default > gpt equal_flops",
        "bert default > albert default",
        "electra equal_flops > bert default",
    )
    return config
