"""Structural probe of depth: does a linear map of the states show a word's depth in the tree?

  python -m scalelab.eval.probes.depth --run=RUN --data=DIR --workdir=DIR

DIR holds a treebank of Universal Dependencies, *-ud-{train,dev,test}.conllu or .conllu.xz. The
score is the share of test sentences of at least two words in which the root has the least predicted
depth; NSpr. is the rank correlation of predicted and true depths, in sentences of 5 to 50 words.
The row `chain` calls the first word the root; --random measures a net with random weights.
scalelab/eval/probes/structural.py says how probes are fitted.
"""

from scalelab.eval.probes import distance
from scalelab.eval.yardstick import program

YARDSTICK = distance.yardstick("depth")
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
