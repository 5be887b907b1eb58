"""MultiRC: which answers to a question are right (Khashabi et al. 2018, NAACL; in SuperGLUE)."""

from scalelab.tasks import superglue

TASK = superglue.TASKS["multirc"]


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
