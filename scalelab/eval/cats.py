"""Commonsense Ability Tests: which of the sentences makes sense (Zhou et al. 2020).

  python -m scalelab.eval.cats --run=RUN --data=DIR --workdir=DIR

DIR holds commonsense_ability_test/<test>.txt, and perhaps Robust_commonsense_test/<change>.txt,
whose pairs come in two versions. A sentence's score is the mean over its tokens. The paper
has GPT-2 (base) at 52.0, BERT (base) at 56.9 and people at 94.5 on average, guessing at 41.6.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("cats")
