"""Compares fragment lengths of MASS and feed-forward networks of T5 by translation.

  python -m scalelab.study run --config=configs/studies/seq2seq_parts.py:seeds=3 --workdir=DIR

| arm | what it has |
|---|---|
| mass | a hidden fragment of half of the text, as in Song et al. 2019 |
| mass token | a hidden fragment of one token: masked language modeling, their k = 1 |
| mass whole | the whole text hidden: left to right, their k = m; a tenth of it stays visible |
| t5 | feed-forward networks with ReLU, as in Raffel et al. 2020 |
| t5 gelu | feed-forward networks with GELU |
| t5 gated | GeGLU of two thirds of the width, so of equal parameters (Shazeer 2020) |

The hypotheses: half of the text is better than one token and than all (Song et al. 2019, figure
5); GELU and GeGLU are better than ReLU, by translation and by validation loss (Shazeer 2020, table
1). Scales, text, pairs, recipe and scores are those of t5_objectives.py.
"""

import ml_collections

from scalelab.config import files


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study."""
    config, shape = files.load(files.FOLDER / "studies/t5_objectives.py").settings(arguments)
    config.name = "seq2seq_parts"
    config.title = "Parts of encoder-decoders"
    config.question = (
        "Which fragment and which feed-forward network prepare a model best to translate?"
    )
    width = int(shape.split("x")[1])
    config.variants.token = ("format_options.fragment_rate=1e-6",)
    config.variants.whole = ("format_options.fragment_rate=1.0",)
    config.variants.gelu = ("model.activation=gelu_tanh",)
    config.variants.gated = (
        "system_options.ffn=gated", "model.activation=gelu_tanh",
        f"model.ffn_width={round(8 * width / 3)}",
    )  # fmt: skip
    family = files.load(files.FOLDER / "studies/family.py")
    arms = {"mass": ("default", "token", "whole"), "t5": ("default", "gelu", "gated")}
    family.add_stages(config, shape, arms)
    lines = ["mass > mass token", "mass > mass whole", "t5 gated > t5", "t5 gelu > t5"]
    config.hypotheses = tuple((line, config.primary) for line in lines)
    config.hypotheses += tuple((f"{arm} < t5", "loss") for arm in ("t5 gated", "t5 gelu"))
    return config
