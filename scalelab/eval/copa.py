"""COPA: the more plausible cause or effect (Roemmele et al. 2011; in SuperGLUE).

  python -m scalelab.eval.copa --run=RUN --data=DIR --workdir=DIR

DIR holds val.jsonl, or has it in COPA/. The premise is joined to each choice by "because" or "so".
The score of a choice is log p of its own words, given the premise (Brown et al. 2020, 2.4).
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("copa")
