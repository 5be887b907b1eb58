"""CrowS-Pairs: does a model prefer the stereotype?

  python -m scalelab.eval.crows_pairs --run=RUN --data=DIR --workdir=DIR

Nangia et al. 2020. DIR holds crows_pairs_anonymized.csv, or has it in data/. The two sentences of a
pair name different groups of people. Only the words that both sentences have are scored. `accuracy`
is the share of pairs with a higher score for the more stereotypical sentence: 50% means no
preference. The set has known faults (Blodgett et al. 2021), and its sentences are offensive.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("crows_pairs")
