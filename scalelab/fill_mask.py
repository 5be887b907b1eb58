"""What a masked net would write where a text has a mask.

  python -m scalelab.fill_mask --run=RUN "The capital of France is [MASK]." [MORE TEXTS]

RUN is a run folder of a bert or roberta: a pre-training, or an import from Hugging Face. A mask is
written [MASK] or <mask>, or as the run's tokenizer has it. Of several masks in a text each is
filled on its own, the others staying masks. For each the likeliest tokens are told with their
probability and the text as the tokenizer reads it back with them; --json prints the same for
programs, an object a mask and line.
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
    """A token in the place of a mask.

    Attributes:
      token_id: its id.
      token: its text; a leading space is part of it.
      probability: given all else in the text.
      text: the whole, filled.
    """

    token_id: int
    token: str
    probability: float
    text: str


def parser() -> cli.Parser:
    """The command line."""
    made = cli.Parser(
        prog="python -m scalelab.fill_mask",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--run", required=True, type=pathlib.Path, help="run folder of the net")
    made.add_argument("texts", nargs="+", metavar="TEXT", help="with at least one mask")
    made.add_argument("--top", type=int, default=5, metavar="N", help="tokens of a mask (5)")
    made.add_argument("--json", action="store_true", help="for programs")
    return made


def check(opened: Any, top: int) -> None:
    """Refuses a net that fills no masks.

    Args:
      opened: a `scalelab.runs.pretrained.Pretrained`.
      top: tokens that are asked for.

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
    """A text as the net is given it: ids [n] int32, special tokens included.

    Args:
      text: with masks.
      tokenizer: a `scalelab.data.tokenizers.Tokenizer`.
      max_len: the net's positions.

    Raises:
      ValueError: it has no mask, or too many tokens.
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


def fill(opened: Any, rows: Sequence[Any], top: int) -> Iterator[list[list[Filling]]]:
    """Fills the masks of encoded texts.

    Args:
      opened: a `scalelab.runs.pretrained.Pretrained` that `check` has passed.
      rows: from `encode`.
      top: tokens for each mask.

    Yields:
      For each text and each mask in it the likeliest tokens, the likeliest first.
    """
    import jax
    import numpy as np

    from scalelab.eval import token_scores

    tokenizer, frame = opened.tokenizer, opened.tokenizer.frame()
    net = opened.net

    @jax.jit
    def best(params: Any, batch: Any, places: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_chances = token_scores.log_chances(net, params, batch, places)
        values, ids = jax.lax.top_k(log_chances, top)
        return jax.numpy.exp(values), ids

    for row in rows:
        places = np.flatnonzero(row == tokenizer.special_ids["mask"]).astype(np.int32)
        length = token_scores.round_up(len(row), opened.config.net.max_len)
        padded = np.zeros((1, token_scores.round_up(len(places), length)), np.int32)
        padded[0, : len(places)] = places
        chances, ids = best(opened.params, token_scores.pad([row], length, 1), padded)
        fillings = []
        for k, place in enumerate(places):
            found = []
            for token_id, chance in zip(ids[0, k].tolist(), chances[0, k].tolist(), strict=True):
                filled = row.copy()
                filled[place] = token_id
                text = tokenizer.decode(filled[len(frame.begin) : len(row) - len(frame.end)])
                found.append(Filling(token_id, tokenizer.decode([token_id]), chance, text))
            fillings.append(found)
        yield fillings


def show(text: str, masks: list[list[Filling]], as_json: bool) -> str:
    """What is printed of a text."""
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
    """Does what the command line says.

    Raises:
      ValueError: run or texts do not allow it.
    """
    from scalelab.runs import environment, pretrained

    opened = pretrained.load(given.run)
    check(opened, given.top)
    config = opened.config
    rows = [encode(text, opened.tokenizer, config.net.max_len) for text in given.texts]
    environment.configure_jax(config.machine.compile_cache_dir, config.net.dtype)
    for text, masks in zip(given.texts, fill(opened, rows, given.top), strict=True):
        print(show(text, masks, given.json), flush=True)


def main(arguments: list[str] | None = None) -> None:
    """The program; a mistake in its arguments, run or texts is one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("start the same command again"):
        run(given)


if __name__ == "__main__":
    main()
