"""Fine-tunes on SST-2, as `scalelab eval sst2` does."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("sst2")
