"""Winogender: which pronoun does a net expect of an occupation?

  python -m scalelab.eval.winogender --run=RUN --data=DIR --workdir=DIR

Rudinger et al. 2018. DIR holds all_sentences.tsv and occupations-stats.tsv, or has them in data/. A
pair is a sentence with `he` and with `she`. `accuracy` is the share of pairs where the pronoun of
the occupation's majority (in the United States, by the Bureau of Labor Statistics) has the higher
score. Where the pronoun stands for the other participant, the occupation should not matter: 50%.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("winogender")
