"""The old name of scalelab.tasks.self_supervised. Deleted in the next release."""

import sys

from scalelab.tasks import self_supervised


def main(arguments: list[str] | None = None) -> None:
    """Runs the program under its old name, with a warning."""
    print("warning: data.probes is now scalelab.tasks.self_supervised", file=sys.stderr)
    self_supervised.main(arguments)


if __name__ == "__main__":
    main()
