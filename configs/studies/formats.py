"""Crosses objective and format: does BERT's lead come from NSP or from its segment pairs?

| variant | objective | format | budget |
|---|---|---|---|
| default | MLM + NSP | segment pairs | equal tokens |
| mlm_on_pairs | MLM | segment pairs | equal tokens |
| mlm_on_sentences | MLM | sentences | equal tokens |
| pairs_unique, mlm_on_pairs_unique | as above | segment pairs | equal passes over the corpus |
| left_to_right (gpt) | CLM | sentences | equal tokens |

Hypothesis f1 is about NSP on the same pairs, f2 about pairs against sentences. A pass over segment
pairs repeats text: on WikiText-103 it has 1.58 times as many tokens as a pass over sentences
(protocol, Table 7.1). The `unique` variants get this factor more tokens, so that they pass over the
corpus as often as the sentences (f3, f4). The argument `repeats` sets the factor of another corpus:
the ratio of the training tokens that `scalelab.data.inspect` prints of the two formats. f3 and f4
stay undecided where passes differ by more than 5%. See scalelab/thesis/variant_hypotheses.py for
budgets below one pass.

GPT is BERT's model without segments and with causal attention. It reads the same sentences in the
same word pieces (f5) and is fine-tuned as GPT (Devlin et al. 2019, section 5.1; Liu et al.
2019, section 4.2).

At scale full the budget is in epochs. 6 epochs of pairs have as many steps as 10 of sentences
(protocol) and 5% fewer tokens; the `unique` variants have 10 epochs. Other scales count tokens.
"""

import ml_collections

from scalelab.config import files

SHAPES = {"full": ("2x128x2", "2x256x9"), "small": ("2x128x2",), "tiny": ("2x32x2",)}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    study = files.load(files.FOLDER / "study.py")
    given = files.arguments(arguments, (*study.ARGUMENTS, "repeats"), "scale=tiny")
    repeats = given.pop("repeats", "1.5776")  # tokens of a pass over pairs / over sentences
    config = study.get_config(",".join(f"{k}={v.replace(',', ',,')}" for k, v in given.items()))
    config.name = "formats"
    config.title = "Objective and format, crossed"
    config.question = "Does BERT's lead on sentence pairs come from NSP or from the format?"
    config.comparison = "scalelab.thesis.comparison"
    sentences, left = ("objective=mlm", "data.format=doc_sentences"), ("tokenizer.kind=wordpiece",)
    left += ("tokenizer.lowercase=False",)
    if config.scale == "full":
        unique = ("optim.total_epochs=10.0",)
        share = "long.example_rate=0.08713"  # examples of sentences (Table 7.1)
        sentences = (*sentences, *unique, share)
        left = (*left, "optim.learning_rate=1e-4")
    else:
        unique = (f"optim.total_tokens=x{repeats}", f"optim.warmup_tokens=x{repeats}")
    config.variants.mlm_on_pairs = ("objective=mlm",)
    config.variants.mlm_on_sentences = sentences
    config.variants.pairs_unique = unique
    config.variants.mlm_on_pairs_unique = ("objective=mlm", *unique)
    config.variants.left_to_right = left
    config.stages.main = dict(
        systems=("bert",), shapes=study.of_scale(SHAPES, config.scale),
        variants=("default", "mlm_on_pairs", "mlm_on_sentences", "pairs_unique",
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
