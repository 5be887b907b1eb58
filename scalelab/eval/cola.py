"""Fine-tunes on CoLA: the same program as `scalelab eval cola`."""

from scalelab.eval import program

if __name__ == "__main__":
    program.run("cola")
