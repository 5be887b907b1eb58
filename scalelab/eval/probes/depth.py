"""Structural probe of depth: does a linear map of the states encode the depth of words?

  python -m scalelab.eval.probes.depth --run=RUN --data=DIR --workdir=DIR

DIR holds a treebank of Universal Dependencies, *-ud-{train,dev,test}.conllu or .conllu.xz. The
score is the share of test sentences in which the root has the smallest predicted depth. Punctuation
is ignored; a sentence is left out if its root is punctuation or its only word. NSpr. is the
rank correlation of predicted and true depths in sentences of 5 to 50 words. The row `chain` answers
with the first word. --random measures a model with random weights.
scalelab/eval/probes/structural.py describes the fit (Hewitt and Manning 2019, 2).
"""

from scalelab.eval import suites
from scalelab.eval.probes import distance, engine

EVALUATION = engine.evaluation("depth", "structural", "depth", options=distance.OPTIONS)

if __name__ == "__main__":
    suites.run("probes.depth")
