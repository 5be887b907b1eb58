"""How much of what a net has learnt is the order of words: its loss as it is, and on shuffled text.

  python -m scalelab.eval.word_order --run=RUN [--num_examples=512] [--seed=0]

RUN is a pre-training of this project; its own validation examples are read, of the short length.
The tokens within each segment change places at random, special tokens stay where they are. A net
that sees a text as a bag of words loses nothing by it, one that goes by neighbours much (Sinha et
al. 2021, "Masked language modeling and the distributional hypothesis", section 3, shuffle the
corpus before training; here the net is trained on text as it is). Losses are nats a prediction,
each objective's own. Masks and labels are drawn with the same key both times.
"""

import argparse
import collections
import pathlib

import numpy as np

from scalelab.config import cli

BATCH_SIZE = 64


def parser() -> cli.Parser:
    """The command line."""
    made = cli.Parser(
        prog="python -m scalelab.eval.word_order",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--run", required=True, type=pathlib.Path, help="run folder of the net")
    made.add_argument(
        "--num_examples", type=int, default=512, metavar="N", help="to read; default: 512"
    )
    made.add_argument("--seed", type=int, default=0, help="of places and masks; default: 0")
    return made


def shuffled(tokens: np.ndarray, special: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Lets the tokens between special ones change places.

    Args:
      tokens: int [B, T].
      special: bool [B, T], those that stay: special tokens and padding.
      rng: decides the places.

    Returns:
      int [B, T], of each stretch the same tokens.
    """
    found = tokens.copy()
    for row, stays in zip(found, special, strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[1], stays, [1]])))
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            row[first:last] = rng.permutation(row[first:last])
    return found


def losses(run: pathlib.Path, num_examples: int, seed: int) -> dict[str, tuple[float, float]]:
    """Of each objective: the loss on validation examples as they are, and shuffled.

    Raises:
      ValueError: it is no pre-training of this project, its corpus is not at hand, or no example
        is asked for.
    """
    if num_examples < 1:
        raise ValueError(f"--num_examples={num_examples}: expected at least 1")
    import jax

    from scalelab import step
    from scalelab.data import load_data
    from scalelab.runs import environment, pretrained

    opened = pretrained.load(run)
    config = opened.config
    environment.configure_jax(config.machine.compile_cache_dir, config.net.dtype)
    given = None if config.init is None else opened.tokenizer_dir  # its first run may be gone
    store = load_data(config, opened.system, tokenizer_dir=given).phases[0].valid
    ids = opened.tokenizer.special_ids
    evaluate = jax.jit(step.make_eval_step(opened.net, opened.objectives))
    rng = np.random.default_rng(seed)
    sums = collections.defaultdict(lambda: np.zeros((2, 2)))
    chosen = np.arange(min(num_examples, len(store)), dtype=np.int32)
    for number, start in enumerate(range(0, len(chosen), BATCH_SIZE)):
        examples = chosen[start : start + BATCH_SIZE]
        batch = store.gather(examples, config.short.max_len) | {"examples": examples}
        places = np.arange(config.short.max_len)
        special = np.isin(batch["tokens"], list(ids.values())) | (
            places >= batch["lengths"][:, None]
        )
        mixed = batch | {"tokens": shuffled(batch["tokens"], special, rng)}
        for column, one in enumerate((batch, mixed)):
            key = jax.random.fold_in(jax.random.key(seed), number)
            for name, pair in evaluate(opened.params, one, key).items():
                if name.endswith("_loss"):
                    sums[name.removesuffix("_loss")][column] += np.asarray(pair, float)
    return {name: tuple((s[:, 0] / np.maximum(s[:, 1], 1)).tolist()) for name, s in sums.items()}


def main(arguments: list[str] | None = None) -> None:
    """The program; a mistake in its arguments or its run is one message and exit code 2."""
    given = parser().parse_args(arguments)
    with cli.one_message("nothing was measured"):
        from scalelab.lab import tables

        found = losses(given.run, given.num_examples, given.seed)
        rows = [
            [name, f"{plain:.3f}", f"{mixed:.3f}", f"{mixed - plain:+.3f}"]
            for name, (plain, mixed) in found.items()
        ]
        print(tables.plain(("objective", "as it is", "shuffled", "difference"), rows), end="")


if __name__ == "__main__":
    main()
