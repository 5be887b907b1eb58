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
language modeling and deshuffling. Arguments are those of configs/studies/family.py, with two
scales:

| scale | text | tokens | shape | fine-tuned on | data |
|---|---|---|---|---|---|
| synthetic | two languages (`scalelab.worlds`, kind cipher) | 1.5 M | 2x64x2 | 1,000 pairs | none |
| nano | English Wikipedia | 30 M | 2x128x2 | 29,000 and 12,460 pairs | corpus=, data= |

The default is synthetic, scored by BLEU of translations into the second language and by ROUGE-2 of
summaries. At nano these are translation into German (`data`/multi30k) and summaries of dialogues
(`data`/dialogsum); the scale is for a GPU. Other studies of encoder-decoders
take text, recipe and scores from here.
"""

import ml_collections

from scalelab.config import files

STYLES = ("bert_style", "mass_style", "drop", "prefix", "deshuffle", "lm")
DOCUMENTS, PAIRS = 20_000, 1000
SCALES = ("synthetic", "nano")


def settings(arguments: str) -> tuple[ml_collections.ConfigDict, str]:
    """Returns a study of translation and summaries without stages, and its shape."""
    family, study = (files.load(files.FOLDER / name) for name in ("studies/family.py", "study.py"))
    given = files.arguments(arguments, (*study.ARGUMENTS, "tokens"), "scale=nano")
    scale = given.get("scale", "synthetic")
    if scale not in SCALES:
        raise ValueError(f"scale {scale!r}: expected one of {', '.join(SCALES)}")
    if scale == "nano":
        if not {"corpus", "data"} <= given.keys():
            raise ValueError("scale=nano needs a text and pairs: corpus=wikitext:DIR,data=DIR")
        config, shape, _ = family.settings(arguments)
        config.finetune.scratch = False
        tasks, epochs = ("multi30k_de", "dialogsum"), 10
        own = "max_len=128", "optim.learning_rate=1e-3"
    else:
        quickstart = files.load(files.FOLDER / "studies/quickstart.py")
        folder = quickstart.make_world(kind="cipher", documents=DOCUMENTS, tasks_examples=PAIRS)
        made = {"corpus": f"wikitext:{folder}", "data": f"{folder}/tasks"}
        config, shape, _ = family.at_synthetic(
            arguments, tokens="1.5e6", evaluations=str(folder), **made
        )
        tasks, epochs = ("cipher", "summary"), 20
        own = "max_len=64", "optim.learning_rate=3e-3"
    config.evaluations, config.evaluation_data = (), None
    config.fields += ("tokenizer.kind=wordpiece",)
    config.finetune.tasks = tasks
    config.finetune.fields = (
        own[0], f"epochs={epochs}", own[1], "optim.warmup_rate=0.1", f"eval_every_epochs={epochs}",
        "batch_size=32", "dropout_rate=0.0",
    )  # fmt: skip
    config.primary, config.tables = tasks[0], ("tasks", "loss")
    config.figures = ("loss_by_tokens",)
    return config, shape


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
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
        *((line, config.primary) for line in lines),
        *((line, config.primary, 5) for line in alike),
    )
    return config
