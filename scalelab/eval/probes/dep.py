"""Dependency relations, from the frozen states of a word and its head (Liu et al. 2019, 3).

  python -m scalelab.eval.probes.dep --run=RUN --data=UD_DIR --workdir=DIR

The features are the states of head and dependent side by side; the head is given. Labels are
universal relations without subtypes (nmod for nmod:poss). Roots are left out. The control task and
the baseline `by word` use the dependent. docs/yardsticks.md explains the table.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalelab.eval.probes import engine
from scalelab.eval.probes.treebank import Sentence
from scalelab.eval.yardstick import program

if TYPE_CHECKING:
    import numpy as np


def find(sentence: Sentence) -> list[engine.Labelled]:
    """Returns each arc, (head, dependent), with its relation."""
    return [
        ((head - 1, place), relation.partition(":")[0])
        for place, (head, relation) in enumerate(zip(sentence.heads, sentence.deprels, strict=True))
        if head
    ]


def join(vectors: "Sequence[np.ndarray]") -> "np.ndarray":
    """Returns the states of head and dependent side by side."""
    import numpy as np

    return np.concatenate(vectors, axis=-1)


YARDSTICK = engine.yardstick("probes.dep", engine.Probing(find, join))
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
