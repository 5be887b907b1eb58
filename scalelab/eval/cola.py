"""Fine-tunes on CoLA, as `scalelab eval cola` does."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("cola")
