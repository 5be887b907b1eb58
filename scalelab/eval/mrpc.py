"""Fine-tunes on MRPC, as `scalelab eval mrpc` does."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("mrpc")
