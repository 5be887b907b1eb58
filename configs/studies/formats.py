"""The seed's missing control: objective and format, crossed, at equal tokens.

BERT's net with MLM + NSP on segment pairs, MLM alone on the same pairs, and MLM alone on sentences
of one document. Whatever NSP gives beyond the pairs, and the pairs beyond the sentences, shows.
Segment pairs use text about 1.6 times; the variant `pairs_unique` has so many more tokens that it
sees as much different text as the sentences (P2-10; Liu et al. 2019, section 4.2).
"""

import importlib.util
import pathlib

import ml_collections

SHAPES = {"full": ("2x128x2", "2x256x9"), "small": ("2x128x2",), "tiny": ("2x32x2",)}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    path = pathlib.Path(__file__).parents[1] / "study.py"
    spec = importlib.util.spec_from_file_location("study", path)
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    config = study.get_config(arguments)
    config.name = "formats"
    config.title = "Objective and format, crossed"
    config.question = "What of BERT's lead on sentence pairs is NSP, what is the format?"
    config.variants.mlm_on_pairs = ("objective=mlm",)
    config.variants.mlm_on_sentences = ("objective=mlm", "data.format=doc_sentences")
    budget = "total_epochs" if config.scale == "full" else "total_tokens"
    config.variants.pairs_unique = (f"optim.{budget}=x1.58",)
    config.stages.main = dict(
        systems=("bert",), shapes=SHAPES[config.scale],
        variants=("baseline", "mlm_on_pairs", "mlm_on_sentences", "pairs_unique"), finetune="all",
    )  # fmt: skip
    config.tables = ("strategies", "large")
    config.figures = ("loss_by_tokens",)
    config.hypotheses = ()
    return config
