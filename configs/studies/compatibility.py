"""Eight compatibility functions of RNNsearch, and no attention: which one learns to translate?

  python -m scalelab.study run --config=configs/studies/compatibility.py:seeds=3 --workdir=DIR

Each arm is an RNNsearch with another score between a state of the decoder and one of the source
(`scalelab/systems/rnnsearch/compatibility.py`): `default` has the paper's, `additive`; `none` is
RNNenc, whose context is the source's last state.
The models restore texts of which 15% are masked (format `denoising`, style `bert_style`), at equal
tokens. Scales, text, pairs, recipe and scores of translation are those of t5_objectives.py; the
second synthetic language has another order of words. The hypotheses: scores that
compare contents are better than `location`, which sees the decoder's state alone, and the paper's
score is better than no attention (Bahdanau et al. 2015, 5.1; Luong et al. 2015, table 4).
"""

import ml_collections

from scalelab.config import files

CONTENT = ("general", "dot", "concat", "biased_general", "activated_general", "scaled_dot")


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
    config, shape = files.load(files.FOLDER / "studies/t5_objectives.py").settings(arguments)
    config.name = "compatibility"
    config.title = "Compatibility functions"
    config.question = "Which score of two states lets a recurrent model learn to translate?"
    config.fields += ("data.format=denoising", "format_options.style=bert_style")
    for score in (*CONTENT, "location"):
        config.variants[score] = (f"system_options.score={score}",)
    config.variants.none = ("system_options.score=None",)
    names = "default", *CONTENT, "location", "none"
    config.stages.main = dict(
        systems=("rnnsearch",), shapes=(shape,), variants=names, finetune="all"
    )
    config.stage_order = ("main",)
    better = [f"{score} > location" for score in ("default", *CONTENT)]
    config.hypotheses = tuple((line, config.primary) for line in (*better, "default > none"))
    return config
