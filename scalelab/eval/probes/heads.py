"""Attention heads as dependency parsers (Clark et al. 2019, "What Does BERT Look At?").

  python -m scalelab.eval.probes.heads --run=RUN --data=DIR --workdir=DIR

Each attention head gives two parsers. For a word, the parser `word to head` answers the other word
that gets most of its attention; `head to word` answers the other word that attends to it most. For
each relation, the best parser on dev is scored on test, next to the best fixed offset. The score is
the share of test words for which the parser of their relation finds the head. Roots and punctuation
are left out. Subtypes such as nsubj:pass count as their relation.

Two more results are printed: a probe that weights all attention heads together, and the attention
of each head to adjacent tokens, special tokens and punctuation, with its entropy.
"""

from scalelab.eval import suites
from scalelab.eval.probes import engine

EVALUATION = engine.evaluation("heads", "parsers", options={}, splits=("dev", "test"))

if __name__ == "__main__":
    suites.run("probes.heads")
