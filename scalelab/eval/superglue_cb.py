"""CB, CommitmentBank: entailment of an embedded clause (de Marneffe et al. 2019; in SuperGLUE)."""

from scalelab.tasks import superglue

TASK = superglue.TASKS["cb"]


if __name__ == "__main__":
    from scalelab.eval import program

    program.run(TASK)
