"""WSC: does a pronoun stand for a phrase (Levesque et al. 2012; in SuperGLUE), fine-tuned."""

from scalelab.tasks import superglue

TASK = superglue.TASKS["wsc"]


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
