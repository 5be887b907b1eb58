"""Fine-tunes on MRPC: the same program as `scalelab eval mrpc`."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("mrpc")
