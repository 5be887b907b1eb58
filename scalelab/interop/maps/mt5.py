"""mT5, `transformers`' MT5ForConditionalGeneration: Xue et al. 2021. An import is a T5, as exports.

The class never has the factor D^-0.5 before the output table, so that a tied one is no T5 of ours.
"""

import dataclasses

from scalelab.interop.mapping import Architecture
from scalelab.interop.maps import t5

DEFAULTS = {
    "num_heads": 6, "num_layers": 8, "d_ff": 1024, "vocab_size": 250112,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip


def _with_defaults(given: tuple) -> tuple:
    """Returns the records with the defaults of this class."""
    return tuple(dataclasses.replace(x, default=DEFAULTS.get(x.key, x.default)) for x in given)


MAP = dataclasses.replace(
    t5.MAP,
    model_type="mt5",
    fields=_with_defaults(t5.MAP.fields),
    choices=_with_defaults(t5.MAP.choices),
    option_choices=_with_defaults(t5.MAP.option_choices),
    architectures=(Architecture("MT5ForConditionalGeneration", ("seq2seq",), "next"),),
    untied=lambda _: True,
    # Transformers 5 ties the tables, and writes so.
    one_table=lambda c: (
        c.get("tie_word_embeddings") is not False
        and "ForConditional" in str(c.get("architectures"))
    ),
)
