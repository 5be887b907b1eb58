"""BoolQ: a yes or no question on a passage (Clark et al. 2019, NAACL; in SuperGLUE)."""

from scalelab.tasks import superglue

TASK = superglue.TASKS["boolq"]


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
