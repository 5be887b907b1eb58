"""Commonsense Ability Tests: which of the sentences makes sense (Zhou et al. 2020).

  python -m scalelab.eval.cats --run=RUN --data=DIR --workdir=DIR

DIR holds commonsense_ability_test/<test>.txt, and optionally Robust_commonsense_test/<change>.txt
with two versions of each pair. A sentence's score is the mean over its tokens. On average GPT-2
(base) has 52.0 in the paper, BERT (base) 56.9, people 94.5, and guessing 41.6.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("cats")
