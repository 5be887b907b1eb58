"""Fine-tunes on QNLI, as `scalelab eval qnli` does."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("qnli")
