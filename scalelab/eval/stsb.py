"""Fine-tunes on STS-B: the same program as `scalelab eval stsb`."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("stsb")
