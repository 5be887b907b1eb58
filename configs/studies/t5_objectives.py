"""T5's objectives on one encoder-decoder: which one helps to translate with few pairs?

  python -m scalelab.study run --config=configs/studies/t5_objectives.py:seeds=3 --workdir=DIR

| arm | source | target |
|---|---|---|
| default | text with sentinels for spans of 3 tokens, 15% in all | these spans |
| bert_style | text; 15% of the tokens masked or random | text |
| mass_style | text; 15% masked | text |
| drop | text without 15% of its tokens | these tokens |
| prefix | the beginning of a text | its end |
| deshuffle | tokens in random order | text |
| lm | nothing | text |

Raffel et al. 2020, 3.3.1 and tables 3 to 5, find the denoising objectives alike and ahead of prefix
language modeling and deshuffling. Here a T5 reads two synthetic languages (`scalelab.worlds`,
kind cipher), 1.5 M tokens. It is fine-tuned on 1,000 sentences with their translations (BLEU), and
on 1,000 passages with their summaries (ROUGE-2). No data are needed.
"""

import ml_collections

from scalelab.config import files

STYLES = ("bert_style", "mass_style", "drop", "prefix", "deshuffle", "lm")
DOCUMENTS, PAIRS = 20_000, 1000


def settings(arguments: str) -> tuple[ml_collections.ConfigDict, str]:
    """Returns a study of cipher translation without stages, and its shape."""
    family, quickstart = (
        files.load(files.FOLDER / f"studies/{name}.py") for name in ("family", "quickstart")
    )
    folder = quickstart.make_world(kind="cipher", documents=DOCUMENTS, tasks_examples=PAIRS)
    own = {"corpus": f"wikitext:{folder}", "data": f"{folder}/tasks", "evaluations": str(folder)}
    config, shape, _ = family.at_synthetic(arguments, tokens="1.5e6", **own)
    config.evaluations, config.evaluation_data = (), None
    config.fields += ("tokenizer.kind=wordpiece",)
    config.finetune.tasks = ("cipher", "summary")
    config.finetune.fields = (
        "max_len=64", "epochs=20", "optim.learning_rate=3e-3", "optim.warmup_rate=0.1",
        "eval_every_epochs=20", "batch_size=32", "dropout_rate=0.0",
    )  # fmt: skip
    config.primary, config.tables = "cipher", ("tasks", "loss")
    config.figures = ("loss_by_tokens",)
    return config, shape


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    config, shape = settings(arguments)
    config.name = "t5_objectives"
    config.title = "T5's objectives"
    config.question = "Which objective helps an encoder-decoder most to translate with few pairs?"
    for style in STYLES:
        config.variants[style] = ("data.format=denoising", f"format_options.style={style}")
    config.stages.main = dict(
        systems=("t5",), shapes=(shape,), variants=("default", *STYLES), finetune="all"
    )
    config.stage_order = ("main",)
    lines = ["bert_style > prefix", "bert_style > deshuffle", "bert_style > lm", "default > lm"]
    alike = "bert_style ~ default", "bert_style ~ mass_style", "bert_style ~ drop"
    config.hypotheses = (
        *((line, "cipher") for line in lines),
        *((line, "cipher", 5) for line in alike),
    )
    return config
