"""SpanBERT, `transformers`' BertFor...: Joshi et al. 2020.

Exports are BERTs without the head for spans. An import is a BERT, since config.json says no more.
"""

import dataclasses

from scalelab.interop.maps import bert

MAP = dataclasses.replace(
    bert.MAP,
    system="spanbert",
    architectures=tuple(a for a in bert.MAP.architectures if "nsp" not in a.heads),
    imports=False,
)
