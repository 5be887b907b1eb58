"""Fine-tunes on WNLI: the same program as `scalelab eval wnli`."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("wnli")
