"""The built-in corpus: English out of docstrings, read without importing anything."""

import sys

from scalelab.config.pretraining import Data
from scalelab.data.corpora import builtin, open_corpus


def test_docstrings_become_english():
    source = b'''"""Tools for wells.

A well is a hole in the ground that holds water for the village.
"""
import nothing_that_exists

raise RuntimeError("this must not run")

def depth(rope, bucket=None):
    """Return the depth of a well as measured with a rope.

    Parameters
    ----------
    rope : array_like
        The rope that is let down, which must be longer than
        the well is deep.
    bucket : Bucket, optional
        See `Bucket`.

    Returns
    -------
    depth : float

    Notes
    -----
    The rope gets wet, see :func:`~wells.dry` and ``Rope.wring`` for help [1]_.

    >>> depth([1, 2])
    3.0

    .. math:: d = \\sqrt{r}
    """

class Bucket:
    """A bucket that hangs on the rope of a well.

    Args:
      size: The number of litres that
        the bucket holds when it is full.
    """

    def fill(self):
        """Fill the bucket to its brim with water."""
'''
    found = [
        [p for text in texts for p in builtin.paragraphs(text)]
        for texts in builtin.docstrings(source)
    ]
    assert found == [
        [
            "A well is a hole in the ground that holds water for the village.",
            "Return the depth of a well as measured with a rope.",
            "The rope that is let down, which must be longer than the well is deep.",
            "The rope gets wet, see wells.dry and Rope.wring for help.",
        ],
        [
            "A bucket that hangs on the rope of a well.",
            "The number of litres that the bucket holds when it is full.",
            "Fill the bucket to its brim with water.",
        ],
    ]
    assert list(builtin.docstrings(b"def broken(:")) == []


def test_builtin_reads_without_importing(monkeypatch):
    monkeypatch.setattr(builtin, "PACKAGES", ("ml_collections", "etils"))
    every = builtin.source_files()
    inside = [
        path
        for path in every
        if {"asyncio", "pydoc_data", "ml_collections", "etils"} & set(path.parts)
    ]
    monkeypatch.setattr(builtin, "source_files", lambda: inside)
    before = set(sys.modules)
    corpus = open_corpus("builtin", Data(valid_rate=0.05))
    found = list(corpus.labeled())
    assert set(sys.modules) - before == set()
    assert found == list(corpus.labeled())
    assert corpus.fingerprint() == open_corpus("builtin", Data(valid_rate=0.05)).fingerprint()
    lines = [line for _, text in found for line in text.split("\n")]
    assert len(lines) == len(set(lines))  # what is repeated in many places is kept once
    assert not any(line.startswith((">>>", "---")) for line in lines)
    assert sum(map(len, lines)) > 200_000
    words = " ".join(lines).lower().split()
    assert sum(words.count(word) for word in ("the", "of", "a", "is", "to")) > 0.1 * len(words)
