"""WSC: the referent of a pronoun, by substitution (Levesque et al. 2012; in SuperGLUE).

  python -m scalelab.eval.wsc --run=RUN --data=DIR --workdir=DIR

DIR holds val.jsonl and train.jsonl, or has them in WSC/. SuperGLUE asks yes or no about one
candidate; here each candidate replaces the pronoun in turn, and the text with the best score is the
answer (Trinh and Le 2018, full scoring). Pronouns without a right or a wrong candidate are left
out.
Both splits are read, because nothing is trained.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("wsc")
