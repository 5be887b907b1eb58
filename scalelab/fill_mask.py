"""Fills the masks of texts with a masked net.

  python -m scalelab.fill_mask --run=RUN "The capital of France is [MASK]." [MORE TEXTS]

RUN is a run folder of a bert or roberta: a pre-training, or an import from Hugging Face. A mask is
written [MASK] or <mask>, or as in the run's tokenizer. Of several masks in a text each is filled on
its own; the others stay masks. Prints the likeliest tokens of each mask with their probability
and the filled text; --json prints one object a mask and line.
"""

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from scalelab.config import cli

MASKS = ("[MASK]", "<mask>")  # accepted besides the tokenizer's own


@dataclasses.dataclass(frozen=True)
class Filling:
    """A token that fills a mask.

    Attributes:
      token_id: its id.
      token: its text; a leading space is part of it.
      probability: given all else in the text.
      text: the filled text.
    """

    token_id: int
    token: str
    probability: float
    text: str


def parser() -> cli.Parser:
    """Makes the parser of the command line."""
    made = cli.Parser(
        prog="python -m scalelab.fill_mask",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--run", required=True, type=pathlib.Path, help="run folder of the net")
    made.add_argument("texts", nargs="+", metavar="TEXT", help="with at least one mask")
    made.add_argument("--top", type=int, default=5, metavar="N", help="tokens of a mask (5)")
    made.add_argument("--tensor_parallel", type=int, default=1, help="devices that share the net")
    made.add_argument("--json", action="store_true", help="for programs")
    return made


def check(opened: Any, top: int) -> None:
    """Refuses a net that fills no masks.

    Args:
      opened: the run.
      top: number of tokens for each mask.

    Raises:
      ValueError: with the reason.
    """
    if opened.system.CAUSAL:
        raise ValueError(
            f"{opened.path} is a {opened.config.system}, which reads from left to right and fills"
            " no masks; to let it continue a text: python -m scalelab.sample"
        )
    if "mlm" not in opened.config.objectives:
        raise ValueError(
            f"{opened.path} was trained on {opened.config.objective!r}; expected 'mlm', which"
            " teaches a net to fill masks"
        )
    if not 1 <= top <= opened.config.tokenizer.vocab_size:
        raise ValueError(
            f"--top={top}: expected 1 to {opened.config.tokenizer.vocab_size}, the vocabulary"
        )


def encode(text: str, tokenizer: Any, max_len: int) -> Any:
    """Encodes a text: ids [n] int32, special tokens included.

    Args:
      text: with masks.
      tokenizer: a `scalelab.data.tokenizers.Tokenizer`.
      max_len: the net's positions.

    Raises:
      ValueError: the text has no mask, or too many tokens.
    """
    import numpy as np

    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"not valid UTF-8: {text!r}") from None
    mask_id = tokenizer.special_ids["mask"]
    own = tokenizer.token(mask_id)
    for mask in MASKS:
        text = text.replace(mask, own)
    frame = tokenizer.frame()
    ids = np.concatenate([frame.begin, tokenizer.encode_with_masks(text), frame.end])
    if mask_id not in ids:
        raise ValueError(f"there is no mask in {text!r}: write {MASKS[0]} where a token is wanted")
    if len(ids) > max_len:
        raise ValueError(
            f"{text[:40]!r}... has {len(ids)} tokens, special ones included, and the net"
            f" {max_len} positions: shorten it"
        )
    return ids.astype(np.int32)


def fill(
    opened: Any, rows: Sequence[Any], top: int, tensor_parallel: int = 1
) -> Iterator[list[list[Filling]]]:
    """Fills the masks of encoded texts, as many at a time as devices share a batch.

    Args:
      opened: a `scalelab.runs.pretrained.Pretrained` that `check` has passed.
      rows: from `encode`.
      top: tokens for each mask.
      tensor_parallel: devices that share the net.

    Yields:
      For each text a list of its masks, each a list of fillings, the likeliest first.
    """
    import jax
    import numpy as np

    from scalelab.eval import placement, token_scores

    tokenizer, frame = opened.tokenizer, opened.tokenizer.frame()
    placed = placement.place(opened, tensor_parallel)

    @jax.jit
    def best(params: Any, batch: Any, places: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_chances = token_scores.log_chances(placed.net, params, batch, places)
        values, ids = jax.lax.top_k(log_chances, top)
        return jax.numpy.exp(values), ids

    def fill_in(row: Any, place: int, token_id: Any, chance: Any) -> Filling:
        filled = row.copy()
        filled[place] = token_id
        text = tokenizer.decode(filled[len(frame.begin) : len(row) - len(frame.end)])
        return Filling(int(token_id), tokenizer.decode([int(token_id)]), float(chance), text)

    for begin in range(0, len(rows), placed.ways):
        part = rows[begin : begin + placed.ways]
        masks = [np.flatnonzero(row == tokenizer.special_ids["mask"]) for row in part]
        length = token_scores.round_up(max(map(len, part)), opened.config.net.max_len)
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
    if as_json:
        lines = [
            json.dumps(
                {"text": text, "mask": k, "fillings": [dataclasses.asdict(f) for f in fillings]}
            )
            for k, fillings in enumerate(masks)
        ]
        return "\n".join(lines)
    lines = [text]
    for k, fillings in enumerate(masks):
        lines += [f"  mask {k + 1} of {len(masks)}"] * (len(masks) > 1)
        tokens = [json.dumps(f.token, ensure_ascii=False) for f in fillings]
        width = max(map(len, tokens))
        for filling, token in zip(fillings, tokens, strict=True):
            lines.append(f"  {filling.probability:.4f}  {token:<{width}}  {filling.text}")
    return "\n".join(lines)


def run(given: argparse.Namespace) -> None:
    """Fills the masks of the texts on the command line.

    Raises:
      ValueError: run or texts do not allow it.
    """
    from scalelab.runs import environment, pretrained

    opened = pretrained.load(given.run)
    check(opened, given.top)
    config = opened.config
    rows = [encode(text, opened.tokenizer, config.net.max_len) for text in given.texts]
    environment.configure_jax(config.machine.compile_cache_dir, config.net.dtype)
    for text, masks in zip(
        given.texts, fill(opened, rows, given.top, given.tensor_parallel), strict=True
    ):
        print(show(text, masks, given.json), flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Runs the program; a mistake of the user ends in one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("start the same command again"):
        run(given)


if __name__ == "__main__":
    main()
