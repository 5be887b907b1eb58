"""Does it hurt to repeat a small text in pre-training? T5 at equal tokens, from four corpora.

  python -m scalelab.study run --config=configs/studies/t5_data.py:seeds=3 --workdir=DIR

| arm | documents | passes |
|---|--:|--:|
| default | 20,000 | about 1 |
| repeats_4 | 5,000 | 4 |
| repeats_16 | 1,250 | 14 |
| repeats_64 | 312 | 56 |

Raffel et al. 2020, 3.4.2 and table 9, find that the training loss falls and the scores fall too;
their study of cleaning is not part of this one, because the synthetic text is clean. The smaller
corpora are beginnings of the largest; all have its validation text. Objective, pairs, recipe and
scores are those of t5_scaling.py.
"""

import pathlib

import ml_collections

from scalelab.config import files
from scalelab.helpers.files import write_text

REPEATS = (4, 16, 64)
HEADING = " = Document"


def shortened(folder: pathlib.Path, count: int) -> pathlib.Path:
    """Writes a corpus with the first `count` training documents beside `folder`, once.

    Files are written whole, the training text last: without it an interrupted copy begins again.
    """
    path = folder.with_name(f"{folder.name}-first-{count}")
    folder, made = folder.expanduser(), path.expanduser()
    if not (made / "wiki.train.raw").exists():
        made.mkdir(exist_ok=True)
        texts = {
            split: (folder / f"wiki.{split}.raw").read_text(encoding="utf-8")
            for split in ("valid", "test", "train")
        }
        documents = texts["train"].split(HEADING)  # the first part stands before all headings
        texts["train"] = HEADING.join(documents[: count + 1])
        for split, text in texts.items():
            write_text(made / f"wiki.{split}.raw", text)
    return path


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    objectives = files.load(files.FOLDER / "studies/t5_objectives.py")
    config, shape = objectives.settings(arguments)
    config.name = "t5_data"
    config.title = "Repeated text"
    config.question = "Does a text that is repeated pre-train as well as a longer one?"
    config.fields += ("data.format=denoising", "format_options.style=bert_style")
    folder = pathlib.Path(config.pretrain.data.corpus.removeprefix("wikitext:"))
    for repeats in REPEATS:
        text = shortened(folder, objectives.DOCUMENTS // repeats)
        config.variants[f"repeats_{repeats}"] = (f"data.corpus=wikitext:{text}",)
    arms = tuple(f"repeats_{repeats}" for repeats in REPEATS)
    config.stages.main = dict(
        systems=("t5",), shapes=(shape,), variants=("default", *arms), finetune="all"
    )
    config.stage_order = ("main",)
    config.hypotheses = tuple((f"default > {arm}", "cipher") for arm in arms)
    return config
