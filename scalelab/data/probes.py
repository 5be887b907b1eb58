"""The old name of make-tasks (scalelab.tasks.self_supervised). Deleted in the next release."""

import sys

from scalelab.config import cli
from scalelab.tasks import self_supervised
from scalelab.tasks.self_supervised import main as main


def parser() -> cli.Parser:
    """Returns the command line, with a warning."""
    print("warning: data.probes is now scalelab.tasks.self_supervised", file=sys.stderr)
    return self_supervised.parser()


if __name__ == "__main__":
    cli.run(main, parser())
