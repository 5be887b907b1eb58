"""Compares three systems at equal tokens on the built-in corpus; nothing to download.

  python -m scalelab.study run --config=configs/studies/quickstart.py --workdir=runs/quickstart

It is thesis 7.5.1 for a laptop: one shape and two seeds of each system. The two tasks are made from
the corpus itself (scalelab/data/probes.py); they are no benchmark. The vocabulary is smaller, the
learning rate higher and the budget shorter than the protocol's, so that losses fall within minutes
on two cores.
"""

import ml_collections

from scalelab.config import files

TOKENS = 1.2e6


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/study.py but `scale`."""
    study = files.load(files.FOLDER / "study.py")
    if "scale" in study.parse(arguments):
        raise ValueError("the quickstart has one scale; take configs/studies/thesis_7_5_1.py")
    config = study.get_config(",".join(filter(None, ["scale=small", arguments])))
    config.name = "quickstart"
    config.title = "Quickstart: three styles at equal tokens"
    config.question = "Which of three pre-training styles carries over best to two probe tasks?"
    config.comparison = "scalelab.thesis.comparison"
    config.scale = "quickstart"
    pretrain = config.pretrain
    pretrain.tokenizer.vocab_size, pretrain.tokenizer.lowercase = 4096, True
    pretrain.short.max_len, pretrain.long.max_len, pretrain.net.max_len = 64, 128, 128
    pretrain.short.batch_size, pretrain.long.batch_size = 32, 8
    pretrain.optim.total_tokens, pretrain.optim.warmup_tokens = TOKENS, TOKENS / 10
    pretrain.eval.every_steps = 200
    config.fields = ("optim.learning_rate=3e-3",)
    config.stages.main = dict(
        systems=("bert", "gpt2", "roberta"), shapes=("2x64x2",), variants=("baseline",),
        finetune="all",
    )  # fmt: skip
    config.finetune.tasks = ("same_document", "swapped_words")
    config.finetune.data = "probes"
    config.finetune.seeds = 2
    config.finetune.scratch = False  # minutes; the report says what it could not check
    config.finetune.fields = ("max_len=96",)
    config.tables = ("data", "probes")
    config.figures = ("score_by_task", "loss_by_tokens", "loss_by_time")
    config.hypotheses = ()
    return config
