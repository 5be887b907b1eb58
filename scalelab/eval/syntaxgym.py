"""SyntaxGym: 34 suites in 6 circuits, each a prediction about surprisals (Hu et al. 2020).

  python -m scalelab.eval.syntaxgym --run=RUN --data=DIR --workdir=DIR

DIR holds <suite>.json, or has them in json/. A prediction compares the surprisals of regions of a
sentence in several conditions. An item is right if all comparisons of its prediction hold. If a
suite has several predictions, each makes an item. Predictions of equality are left out, because
real numbers are never equal. `chance` is the share of right items for independent random
surprisals.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("syntaxgym")
