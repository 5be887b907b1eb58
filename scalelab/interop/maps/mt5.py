"""mT5, `transformers`' MT5ForConditionalGeneration: Xue et al. 2021. An import is a T5, as exports.

The class never has the factor D^-0.5 before the output table, so that a tied one is no T5 of ours.
"""

import dataclasses

from scalelab.interop.mapping import Architecture
from scalelab.interop.maps import t5
from scalelab.interop.maps._layers import with_defaults

DEFAULTS = {
    "num_heads": 6, "num_layers": 8, "d_ff": 1024, "vocab_size": 250112,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip

MAP = dataclasses.replace(
    t5.MAP,
    model_type="mt5",
    fields=with_defaults(t5.MAP.fields, DEFAULTS),
    choices=with_defaults(t5.MAP.choices, DEFAULTS),
    option_choices=with_defaults(t5.MAP.option_choices, DEFAULTS),
    architectures=(Architecture("MT5ForConditionalGeneration", ("seq2seq",), "next"),),
    untied=lambda _: True,
    # Transformers 5 ties the tables, and writes so.
    one_table=lambda c: (
        c.get("tie_word_embeddings") is not False
        and "ForConditional" in str(c.get("architectures"))
    ),
)
