"""Fine-tunes on SST-2: the same program as `scalelab eval sst2`."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("sst2")
