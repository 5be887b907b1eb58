"""Fine-tunes on MNLI: the same program as `scalelab eval mnli`."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("mnli")
