"""COPA: the more plausible cause or effect (Roemmele et al. 2011; in SuperGLUE), fine-tuned."""

from scalelab.tasks import superglue

TASK = superglue.TASKS["copa"]


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
