"""The seed's missing control: objective and format, crossed, at an equal budget and unique text.

BERT's net with MLM + NSP on segment pairs, MLM alone on the same pairs, and MLM alone on sentences
of one document: what NSP gives beyond the pairs (f1), and the pairs beyond the sentences (f2).
Pairs repeat text: an epoch of them has more tokens, of WikiText-103 1.58 times as many (protocol,
Table 7.1). So the variants `unique` get so many more tokens that they pass over the corpus as often
as the sentences (f3, f4), which is counted in the examples of the corpus at hand; what that means
below one pass is said in scalelab/thesis/variant_hypotheses.py.
GPT, which is BERT's net without segments that sees the left side only, reads the same sentences in
the same word pieces (f5); it is fine-tuned as GPT is (P2-10; Devlin et al. 2019, section 5.1; Liu
et al. 2019, section 4.2).

At scale full the budget is in epochs: 6 of pairs are as many steps as 10 of sentences (protocol),
and 5% fewer tokens; the `unique` variants have 10. At the other scales the budget is in tokens.
"""

import pathlib

import ml_collections

from scalelab.config import files

SHAPES = {"full": ("2x128x2", "2x256x9"), "small": ("2x128x2",), "tiny": ("2x32x2",)}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    study = files.load(pathlib.Path(__file__).parents[1] / "study.py")
    config = study.get_config(arguments)
    config.name = "formats"
    config.title = "Objective and format, crossed"
    config.question = "What of BERT's lead on sentence pairs is NSP, what is the format?"
    config.comparison = "scalelab.thesis.comparison"
    sentences, left = ("objective=mlm", "data.format=doc_sentences"), ("tokenizer.kind=wordpiece",)
    left += ("tokenizer.lowercase=False",)
    if config.scale == "full":
        unique = ("optim.total_epochs=10.0",)
        share = "long.example_rate=0.08713"  # of examples of sentences (Table 7.1)
        sentences = (*sentences, *unique, share)
        left = (*left, "optim.learning_rate=1e-4")
    else:
        passes = "xpass:mlm_on_sentences"
        unique = (f"optim.total_tokens={passes}", f"optim.warmup_tokens={passes}")
    config.variants.mlm_on_pairs = ("objective=mlm",)
    config.variants.mlm_on_sentences = sentences
    config.variants.pairs_unique = unique
    config.variants.mlm_on_pairs_unique = ("objective=mlm", *unique)
    config.variants.left_to_right = left
    config.stages.main = dict(
        systems=("bert",), shapes=study.of_scale(SHAPES, config.scale),
        variants=("baseline", "mlm_on_pairs", "mlm_on_sentences", "pairs_unique",
                  "mlm_on_pairs_unique"),
        finetune="all",
    )  # fmt: skip
    config.stages.one_side = dict(
        systems=("gpt",),
        shapes=study.of_scale(SHAPES, config.scale),
        variants=("left_to_right",),
        finetune="all",
    )
    config.stage_order = ("main", "one_side")
    config.tables = ("strategies", "large")
    config.figures = ("loss_by_tokens",)
    config.hypotheses = ("f1", "f2", "f3", "f4", "f5") if config.seeds > 1 else ()
    return config
