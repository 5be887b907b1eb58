"""Span masking or token masking, for questions whose answer is a span of a passage.

  python -m scalelab.study run --config=configs/studies/spans.py:seeds=3 --workdir=DIR

| arm | objective |
|---|---|
| bert tokens | MLM of single tokens |
| bert spans | MLM of spans |
| spanbert | MLM of spans + span boundary objective |

All read sentences of one document, without next-sentence prediction. Joshi et al. 2020, 5 and 6,
find spans better than tokens on such questions, and the boundary objective better still. Here BERT
reads a synthetic language (`scalelab.worlds`, kind grammar), 1.5 M tokens, and is fine-tuned on
12,000 questions on passages (`scalelab/worlds/questions.py`), from random weights too. The score is
F1 of the answers' words, as SQuAD's. No data are needed.

Ten epochs of fine-tuning let every pre-trained model finish. After three epochs the seeds of one
objective differ by 17 to 26 points, more than the objectives do (LOG.md).
"""

import ml_collections

from scalelab.config import files

QUESTIONS = 12_000
MARGIN = 2.0  # points of F1


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    family, quickstart = (
        files.load(files.FOLDER / f"studies/{name}.py") for name in ("family", "quickstart")
    )
    # Equal seeds give equal lexicons, so the questions need no large corpus of their own.
    asked = quickstart.make_world(documents=1, tasks_examples=0, questions=QUESTIONS)
    config, shape, _ = family.at_synthetic(arguments, tokens="1.5e6")
    config.finetune.data = f"{asked}/glue"
    config.evaluations, config.evaluation_data = (), None
    config.name = "spans"
    config.title = "Spans or tokens"
    config.question = "Does masking spans prepare a model better for answers that are spans?"
    config.finetune.tasks, config.finetune.scratch = ("squad",), True
    config.finetune.fields = (
        "max_len=64", "epochs=10", "optim.learning_rate=2e-3", "eval_every_epochs=10",
        "dropout_rate=0.0",
    )  # fmt: skip
    config.variants.tokens = ("objective=mlm", "data.format=doc_sentences")
    config.variants.spans = ("objective=span_mlm", "data.format=doc_sentences")
    arms = {"bert": ("bert", ("tokens", "spans")), "boundary": ("spanbert", ("default",))}
    for name, (system, variants) in arms.items():
        config.stages[name] = dict(
            systems=(system,), shapes=(shape,), variants=variants, finetune="all"
        )
    config.stage_order = tuple(arms)
    config.tables, config.figures = ("tasks", "scratch", "loss"), ("loss_by_tokens",)
    config.primary = "squad"
    config.claims = (
        ("bert spans ~ bert tokens", "squad", MARGIN),
        ("spanbert default ~ bert tokens", "squad", MARGIN),
        ("spanbert default ~ bert spans", "squad", MARGIN),
    )
    return config
