"""Dependency relations, from the frozen states of a word and its head (Liu et al. 2019, 3).

  python -m scalelab.eval.probes.dep --run=RUN --data=UD_DIR --workdir=DIR

The features are the concatenated states of head and dependent; the head is given. Labels are
universal relations without subtypes (nmod for nmod:poss). Roots are left out. The control task and
the baseline `by word` use the dependent. docs/evaluations.md explains the table.
"""

import functools

import numpy as np

from scalelab.eval import suites
from scalelab.eval.probes import engine
from scalelab.tasks.treebank import Sentence


def find(sentence: Sentence) -> list[engine.Labelled]:
    """Returns each arc, (head, dependent), with its relation."""
    return [
        ((head - 1, place), relation.partition(":")[0])
        for place, (head, relation) in enumerate(zip(sentence.heads, sentence.deprels, strict=True))
        if head
    ]


join = functools.partial(np.concatenate, axis=-1)  # states of head and dependent
EVALUATION = engine.evaluation("dep", "layers", engine.Probing(find, join))

if __name__ == "__main__":
    suites.run("probes.dep")
