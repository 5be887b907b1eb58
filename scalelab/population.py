"""Removed: seeds of one model train as processes side by side. Deleted in the next release."""

from scalelab.config import cli

if __name__ == "__main__":
    cli.fail(f"scalelab.population is gone: {cli.REMOVED['population']}")
