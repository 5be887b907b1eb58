"""Fine-tunes on WNLI, as `scalelab eval wnli` does."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("wnli")
