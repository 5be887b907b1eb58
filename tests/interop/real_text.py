"""Real text and tokenizers trained on it: the license of this repository."""

import functools
import pathlib
import tempfile

import declared
import numpy as np
import tiny

from scalelab import systems
from scalelab.data import tokenizers
from scalelab.data.tokenizers import Tokenizer, TokenizerSpec

VOCAB = 300


@functools.cache
def lines() -> list[str]:
    text = (tiny.ROOT / "LICENSE").read_text()
    return [line.strip() for line in text.splitlines() if line.strip()] * 2


def lowercase(system: str) -> bool:
    """Whether its published tokenizer drops case."""
    peer = declared.get(system).peer
    return not isinstance(peer, str) and peer.lowercase


@functools.cache
def tokenizer_dir(system: str) -> pathlib.Path:
    """A tokenizer of the system's kind, in Hugging Face layout; do not write there."""
    module = systems.load(system)
    made = pathlib.Path(_keep().name) / system
    made.mkdir()
    said = declared.get(system)
    spec = TokenizerSpec(
        said.tokenizer, VOCAB, lowercase(system), module.SPECIAL_TOKENS, *module.FRAME
    )
    tokenizers.train(spec, lines(), made)
    return made


@functools.cache
def _keep() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


def batch(system: str, seed: int, *, size: int = 4, length: int = 16) -> dict[str, np.ndarray]:
    """Pieces of the text in the system's frame, padded as the family pads."""
    module, tokenizer = systems.load(system), Tokenizer.load(tokenizer_dir(system))
    frame = tokenizer.frame()
    ids = np.concatenate(tokenizer.encode_batch(lines()))
    rng = np.random.default_rng(seed)
    lengths = rng.integers(length // 2, length + 1, size).astype(np.int32)
    tokens = np.full((size, length), tokenizer.special_ids.get("pad", 0), np.int32)
    second_starts = lengths.copy()
    for row, n, i in zip(tokens, lengths, range(size), strict=True):
        room = n - len(frame.begin) - len(frame.end)
        at = rng.integers(0, len(ids) - room)
        row[:n] = [*frame.begin, *ids[at : at + room], *frame.end]
        if "pair" in module.HEADS:
            second_starts[i] = n // 2
            row[n // 2 - 1] = frame.between[0]
    return {
        "tokens": tokens,
        "lengths": lengths,
        "second_starts": second_starts.astype(np.int32),
        "examples": np.arange(size, dtype=np.int32) + seed * size,
    } | {name: rng.integers(0, 2, size).astype(np.int32) for name in sorted(tiny.label_names())}
