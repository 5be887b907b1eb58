"""Large numbers as people write them: 0.39M, 10.6M, 1e15."""

import math
import re

SUFFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def parse(text: str) -> float:
    """Reads a positive number with an optional suffix.

    Raises:
      ValueError: it is not written so.

    >>> parse("0.39M")
    390000.0
    """
    found = re.fullmatch(r"\s*([\d_,]*\.?\d*(?:[eE][+-]?\d+)?)\s*([kMGBTPE]?)\s*", text)
    try:
        value = float(found[1].replace(",", "")) * SUFFIXES[found[2]] if found else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is no number above 0: expected such as 0.39M, 390000 or 3.9e5")
    return value
