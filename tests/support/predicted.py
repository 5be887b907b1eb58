"""Writes predictions.tsv as a fine-tuning does."""

import pathlib
from typing import Any

from scalelab.records import predictions


def write(path: pathlib.Path, *, texts: Any, gold: Any, outputs: Any, labels: Any) -> None:
    """Writes the file; the arguments are those of `predictions.lines`."""
    path.write_text("".join(predictions.lines(texts, outputs, labels, gold)), encoding="utf-8")
