"""Fine-tunes on QQP: the same program as `scalelab eval qqp`."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("qqp")
