"""Fills the masks of texts with a masked model.

  python -m scalelab.fill_mask --run=RUN "The capital of France is [MASK]." [MORE TEXTS]

RUN is a run folder of a model that predicts masked tokens: a pre-training, or an import from
Hugging Face. A mask is written [MASK] or <mask>, or as in the run's tokenizer. Each of several
masks in a text is filled on its own; the others stay masks. Prints the likeliest tokens of each
mask with their probability and the filled text; --json prints one object a mask and line.
"""

import argparse
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scalelab.config import cli

if TYPE_CHECKING:
    import numpy as np

    from scalelab.training.pretrained import Pretrained

MASKS = ("[MASK]", "<mask>")  # accepted besides the tokenizer's own


class Filling(NamedTuple):
    """A token that fills a mask, its probability given all else in the text, and the filled text.

    A leading space is part of the token.
    """

    token_id: int
    token: str
    probability: float
    text: str


def encode(text: str, opened: "Pretrained") -> "np.ndarray":
    """Encodes a text with masks: ids [n] int32, special tokens included.

    Raises:
      ValueError: the text has no mask, or more tokens than the model has positions.
    """
    import numpy as np

    text.encode()  # refuses bytes of the command line that are no UTF-8
    tokenizer, frame = opened.tokenizer, opened.frame_text(causal=False)
    mask_id = tokenizer.special_ids["mask"]
    for mask in MASKS:
        text = text.replace(mask, tokenizer.token(mask_id))
    inner = tokenizer.encode_special(text, ["mask"])
    ids = np.concatenate([frame.begin, inner, frame.end])
    if mask_id not in ids:
        raise ValueError(f"there is no mask in {text!r}: write {MASKS[0]} where a token is wanted")
    max_len = opened.config.model.max_len
    if len(ids) > max_len:
        raise ValueError(
            f"{text[:40]!r}... has {len(ids)} tokens, special ones included, and the model"
            f" {max_len} positions: shorten it"
        )
    return ids.astype(np.int32)


def fill(
    opened: "Pretrained", rows: "Sequence[np.ndarray]", top: int, tensor_parallel: int = 1
) -> Iterator[list[list[Filling]]]:
    """Fills the masks of encoded texts, as many at a time as devices share a batch.

    Args:
      opened: the run of a masked model.
      rows: from `encode`.
      top: tokens for each mask.
      tensor_parallel: devices that share the model.

    Yields:
      For each text a list of its masks, each a list of fillings, the likeliest first.
    """
    import jax
    import numpy as np
    from flax.typing import ArrayPytree

    from scalelab.eval import placement, token_scores

    tokenizer, frame = opened.tokenizer, opened.frame_text(causal=False)
    placed = placement.place(opened, tensor_parallel)

    @jax.jit
    def best(
        params: ArrayPytree, batch: token_scores.Batch, places: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        log_chances = token_scores.log_chances(placed.net, params, batch, places)
        values, ids = jax.lax.top_k(log_chances, top)
        return jax.numpy.exp(values), ids

    def fill_in(row: np.ndarray, place: int, token_id: np.integer, chance: float) -> Filling:
        filled = row.copy()
        filled[place] = token_id
        text = tokenizer.decode(filled[len(frame.begin) : len(row) - len(frame.end)])
        return Filling(int(token_id), tokenizer.decode([int(token_id)]), float(chance), text)

    for begin in range(0, len(rows), placed.ways):
        part = rows[begin : begin + placed.ways]
        masks = [np.flatnonzero(row == tokenizer.special_ids["mask"]) for row in part]
        length = token_scores.round_up(max(map(len, part)), opened.config.model.max_len)
        most = token_scores.round_up(max(map(len, masks)), length)
        places = np.zeros((placed.ways, most), np.int32)
        for row, own in zip(places, masks, strict=False):
            row[: len(own)] = own
        batch = token_scores.pad(part, length, placed.ways)
        found = jax.device_get(best(placed.params, placed.put(batch), placed.put(places)))
        for row, own, chances, ids in zip(part, masks, *found, strict=False):
            yield [
                [fill_in(row, place, *each) for each in zip(ids[k], chances[k], strict=True)]
                for k, place in enumerate(own)
            ]


def show(text: str, masks: list[list[Filling]], as_json: bool) -> str:
    """Formats the fillings of a text."""
    lines = [] if as_json else [text]
    for k, fillings in enumerate(masks):
        if as_json:
            made = {"text": text, "mask": k, "fillings": [f._asdict() for f in fillings]}
            lines.append(json.dumps(made))
            continue
        lines += [f"  mask {k + 1} of {len(masks)}"] * (len(masks) > 1)
        tokens = [json.dumps(f.token, ensure_ascii=False) for f in fillings]
        width = max(map(len, tokens))
        for filling, token in zip(fillings, tokens, strict=True):
            lines.append(f"  {filling.probability:.4f}  {token:<{width}}  {filling.text}")
    return "\n".join(lines)


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.fill_mask", __doc__)
    made.add_argument("--run", required=True, type=pathlib.Path, help="run folder of the model")
    made.add_argument("texts", nargs="+", metavar="TEXT", help="with at least one mask")
    made.add_argument("--top", type=int, default=5, metavar="N", help="tokens of a mask (5)")
    made.add_argument("--tensor_parallel", type=int, default=1, help="devices that share the model")
    made.add_argument("--json", action="store_true", help="for programs")
    return made


def main(given: argparse.Namespace) -> None:
    """Fills the masks of the texts on the command line.

    Raises:
      ValueError: run or texts do not allow it.
    """
    from scalelab.resources import host
    from scalelab.training import pretrained

    opened = pretrained.load(given.run)
    opened.check_alone()
    config = opened.config
    if opened.predicts != "masked":
        raise ValueError(
            f"{opened.path} is a {config.system} trained on {config.objective!r}; expected a model"
            " that predicts masked tokens (python -m scalelab.sample continues texts)"
        )
    if not 1 <= given.top <= config.tokenizer.vocab_size:
        raise ValueError(
            f"--top={given.top}: expected 1 to {config.tokenizer.vocab_size}, the vocabulary"
        )
    rows = [encode(text, opened) for text in given.texts]
    host.configure_jax(config.machine.compile_cache_dir, config.model.dtype)
    filled = fill(opened, rows, given.top, given.tensor_parallel)
    for text, masks in zip(given.texts, filled, strict=True):
        print(show(text, masks, given.json), flush=True)


if __name__ == "__main__":
    cli.run(main, parser())
