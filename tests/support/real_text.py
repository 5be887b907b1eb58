"""Real text and tokenizers trained on it: the license of this repository."""

import functools
import pathlib
import tempfile

import declared
import numpy as np
import tiny

from scalelab import formats, systems
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
    rng, made = np.random.default_rng(seed), {}
    for array in (array for array in tiny.arrays_of(module) if array.is_counted):
        rows = _, most = array.shape(length, size)
        lengths = rng.integers(most // 2, most + 1, size).astype(np.int32)
        made[formats.lengths_name(array.name)] = lengths
        made[array.name] = np.full(rows, tokenizer.special_ids.get("pad", 0), np.int32)
        for row, n in zip(made[array.name], lengths, strict=True):
            room = n - len(frame.begin) - len(frame.end)
            at = rng.integers(0, len(ids) - room)
            row[:n] = [*frame.begin, *ids[at : at + room], *frame.end]
    made["second_starts"] = made["lengths"].copy()
    if "pair" in module.HEADS:
        made["second_starts"] //= 2
        made["tokens"][np.arange(size), made["second_starts"] - 1] = frame.between[0]
    made["examples"] = np.arange(size, dtype=np.int32) + seed * size
    return made | {
        name: rng.integers(0, 2, size).astype(np.int32) for name in sorted(tiny.label_names())
    }
