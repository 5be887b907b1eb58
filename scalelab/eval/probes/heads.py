"""Attention heads as dependency parsers (Clark et al. 2019, "What Does BERT Look At?").

  python -m scalelab.eval.probes.heads --run=RUN --data=DIR --workdir=DIR

An attention head claims as the head of a word the other word that it attends to most, or that
attends to it most. For each relation the attention head and direction that are best on dev are
scored on test, beside the best fixed offset. The score is the share of words of test whose head is
found by the parser of their relation. Roots and punctuation are left out. Subtypes such as
nsubj:pass count as their relation.

Two more results are printed. A probe weighs all heads together. A table has what each head attends
to on the surface.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalelab.eval.probes import engine, treebank
from scalelab.eval.probes.treebank import Sentence
from scalelab.eval.yardstick import Asked, Measured, Yardstick, program

if TYPE_CHECKING:
    from scalelab.runs.pretrained import Pretrained


def read(folder: pathlib.Path) -> list[list[Sentence]]:
    """Reads the sentences of dev and test."""
    return [treebank.read(folder, split) for split in ("dev", "test")]


def measure(opened: "Pretrained", items: Sequence[Sequence[Sentence]], asked: Asked) -> Measured:
    """Measures a net on the sentences of dev and test."""
    from scalelab.eval.probes import parsers

    return parsers.measure(opened, items, asked)


YARDSTICK = Yardstick("probes.heads", read, measure, engine.DATA, "ud-english-ewt", scratch=True)
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
