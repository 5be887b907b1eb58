"""RTE: does a text entail a hypothesis, in the files of SuperGLUE (Wang et al. 2019)."""

from scalelab.tasks import superglue

TASK = superglue.TASKS["rte"]


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
