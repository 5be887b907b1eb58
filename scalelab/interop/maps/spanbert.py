"""SpanBERT, `transformers`' BertFor...: Joshi et al. 2020.

An export is a BERT without the head for spans. An import is a BERT: config.json does not tell more.
"""

import dataclasses

from scalelab.interop.maps import bert

MAP = dataclasses.replace(
    bert.MAP,
    system="spanbert",
    architectures=tuple(a for a in bert.MAP.architectures if "nsp" not in a.heads),
    imports=False,
)
