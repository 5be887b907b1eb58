"""CrowS-Pairs: does a net prefer the stereotype?

  python -m scalelab.eval.crows_pairs --run=RUN --data=DIR --workdir=DIR

Nangia et al. 2020. DIR holds crows_pairs_anonymized.csv, or has it in data/. A pair differs in the
group that it speaks of; the score of a sentence is of the words that both have. `accuracy` is
the share of pairs where the more stereotypical sentence has the higher score: 50% is no preference.
The set has known faults (Blodgett et al. 2021), and its sentences offend.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("crows_pairs")
