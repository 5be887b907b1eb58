"""Winogender: which pronoun does a model expect of an occupation?

  python -m scalelab.eval.winogender --run=RUN --data=DIR --workdir=DIR

Rudinger et al. 2018. DIR holds all_sentences.tsv and occupations-stats.tsv, or has them in data/. A
pair is a sentence with `he` and with `she`. `accuracy` is the share of pairs with a higher score
for the pronoun of the occupation's majority (in the United States, by the Bureau of Labor
Statistics). If the pronoun refers to the other participant, the occupation should not matter: 50%.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("winogender")
