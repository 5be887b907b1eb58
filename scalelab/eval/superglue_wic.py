"""WiC: has a word one sense in two sentences (Pilehvar et al. 2019, NAACL; in SuperGLUE)."""

from scalelab.tasks import superglue

TASK = superglue.TASKS["wic"]


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
