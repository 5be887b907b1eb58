"""Fine-tunes on QQP, as `scalelab eval qqp` does."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("qqp")
