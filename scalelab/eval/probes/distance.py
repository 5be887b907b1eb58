"""Structural probe of distance: does a linear map of the states encode syntax trees?

  python -m scalelab.eval.probes.distance --run=RUN --data=DIR --workdir=DIR

DIR holds a treebank of Universal Dependencies, *-ud-{train,dev,test}.conllu or .conllu.xz. The
score, UUAS, is the share of test edges that are in the minimum spanning tree of the predicted
distances, without punctuation. DSpr. is the rank correlation of predicted and true distances in
sentences of 5 to 50 words. The row `chain` joins adjacent words. --random measures a model with
random weights. scalelab/eval/probes/structural.py describes the fit (Hewitt and Manning
2019, 2).
"""

from scalelab.eval import suites
from scalelab.eval.probes import engine

OPTIONS = {
    "max_words": (250_000, "use the first sentences of train, up to N words; default: 250000"),
    "rank": (64, "rank of the linear map, at most the width; default: 64"),
    "epochs": (10, "passes over the train split; default: 10"),
}
EVALUATION = engine.evaluation("distance", "structural", "distance", options=OPTIONS)

if __name__ == "__main__":
    suites.run("probes.distance")
