"""Tensor product decomposition: which roles of words explain a sentence's vector?

  python -m scalelab.eval.probes.tpdn --run=RUN --data=DIR --workdir=DIR

DIR holds a treebank of Universal Dependencies, *-ud-{train,dev,test}.conllu or .conllu.xz. At each
layer, the vector of a sentence is the mean state of its words. It is approximated by the mean of
filler (x) role over the words. The filler is the word. The role is its position from the left, from
the right, from both ends, in the dependency tree, or none (bag of words). The table has the mean
squared error on test, in percent of the variance on train. The scheme with the smallest error wins.

The score is the share of test sentences for which tree positions have the smallest error of all
schemes, at the last layer. --random measures a model with random weights.
scalelab/eval/probes/tensor_products.py describes the fit.
"""

from scalelab.eval import suites
from scalelab.eval.probes import engine

OPTIONS = {
    "max_words": (250_000, "approximate number of words of train, evenly spread; default: 250000"),
    "size": (32, "size of the vectors of fillers and of roles; default: 32"),
    "epochs": (20, "passes over the train split; default: 20"),
}
EVALUATION = engine.evaluation("tpdn", "tensor_products", options=OPTIONS)

if __name__ == "__main__":
    suites.run("probes.tpdn")
