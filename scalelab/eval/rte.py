"""Fine-tunes on RTE, as `scalelab eval rte` does."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("rte")
