"""From BERT to RoBERTa, one change a step, at equal tokens.

  python -m scalelab.study run --workdir=runs/ladder_bert_to_roberta \
    --config=configs/studies/ladder_bert_to_roberta.py:corpus=wikitext:DIR,data=GLUE,evaluations=EVALUATIONS

| step | masks | objective | format | tokenizer |
|---|---|---|---|---|
| bert, static | ten draws of each example | MLM + NSP | segment pairs | WordPiece |
| bert | new at every step | MLM + NSP | segment pairs | WordPiece |
| bert, no_nsp | new | MLM | segment pairs | WordPiece |
| bert, sentences | new | MLM | sentences of one document | WordPiece |
| roberta | new | MLM | sentences of one document | byte-level BPE |

RoBERTa's model has no segments; its initial values and the constant of its norms differ a little
from BERT's. The changes are those of Liu et al. 2019, "RoBERTa", 4.1, 4.2 and 4.4, who leave out
NSP and change the format in one step. Larger batches, more text and longer training are not
part of this study. Scale, budget, recipe and arguments are those of configs/studies/family.py.
"""

import ml_collections

from scalelab.config import files


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    family = files.load(files.FOLDER / "studies/family.py")
    config, shape, _ = family.ladder(arguments)
    config.name = "ladder_bert_to_roberta"
    config.title = "From BERT to RoBERTa"
    config.question = "Which of RoBERTa's changes matter?"
    config.variants.static = ("mask_copies=10",)
    config.variants.no_nsp = ("objective=mlm",)
    config.variants.sentences = ("objective=mlm", "data.format=doc_sentences")
    arms = {"bert": ("static", "default", "no_nsp", "sentences"), "roberta": ("default",)}
    family.add_stages(config, shape, arms)
    config.figures = ("loss_by_tokens",)
    config.claims = family.claims(
        config,
        "bert default > bert static",
        "bert no_nsp > bert default",
        "bert sentences > bert no_nsp",
        "roberta default > bert sentences",
    )
    return config
