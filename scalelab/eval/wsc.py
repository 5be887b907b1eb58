"""WSC: what a pronoun stands for, by substitution (Levesque et al. 2012; in SuperGLUE).

  python -m scalelab.eval.wsc --run=RUN --data=DIR --workdir=DIR

DIR holds val.jsonl and train.jsonl, or has them in WSC/. SuperGLUE asks yes or no of one candidate;
here all candidates for a pronoun stand in its place in turn, and the best text is the answer
(Trinh and Le 2018, full scoring). Pronouns without both a right and a wrong candidate are left out.
Both splits are read, because nothing is trained.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("wsc")
