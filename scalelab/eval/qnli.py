"""Fine-tunes on QNLI: the same program as `scalelab eval qnli`."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("qnli")
