"""Fine-tunes on RTE: the same program as `scalelab eval rte`."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("rte")
