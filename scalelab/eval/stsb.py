"""Fine-tunes on STS-B, as `scalelab eval stsb` does."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("stsb")
