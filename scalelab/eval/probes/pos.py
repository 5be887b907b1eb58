"""Part of speech of words, from the frozen states of each layer (Liu et al. 2019, 3).

  python -m scalelab.eval.probes.pos --run=RUN --data=UD_DIR --workdir=DIR

Labels are the universal part-of-speech tags (UPOS). docs/evaluations.md explains the table.
"""

from scalelab.eval import suites
from scalelab.eval.probes import engine
from scalelab.tasks.treebank import Sentence


def find(sentence: Sentence) -> list[engine.Labelled]:
    """Returns each word with its tag."""
    return [((place,), tag) for place, tag in enumerate(sentence.upos)]


EVALUATION = engine.evaluation("pos", "layers", engine.Probing(find, lambda own: own[0]))

if __name__ == "__main__":
    suites.run("probes.pos")
