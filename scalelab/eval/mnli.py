"""Fine-tunes on MNLI, as `scalelab eval mnli` does."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("mnli")
