"""Measures how much a model uses word order: its loss on original and on shuffled text.

  python -m scalelab.eval.word_order --run=RUN [--num_examples=512] [--seed=0]

RUN is a pre-training of this project; the program reads its validation examples of the short
length. Tokens are shuffled within each segment; special tokens stay in place. The loss of a
bag-of-words model does not change; the loss of a model that uses word order rises. Sinha et al.
2021 ("Masked language modeling and the distributional hypothesis", section 3) shuffle the corpus
before training; here the model is trained on original text. Losses are nats per prediction, one for
each objective. Masks and labels are drawn with the same key both times.
"""

import argparse
import collections
import pathlib

import numpy as np

from scalelab.config import cli

BATCH_SIZE = 64


def parser() -> cli.Parser:
    """Makes the parser of the command line."""
    made = cli.Parser("python -m scalelab.eval.word_order", __doc__)
    made.add_argument("--run", required=True, type=pathlib.Path, help="run folder of the model")
    made.add_argument(
        "--num_examples", type=cli.positive, default=512, metavar="N", help="to read; default: 512"
    )
    made.add_argument("--seed", type=int, default=0, help="of places and masks; default: 0")
    made.add_argument("--tensor_parallel", type=int, default=1, help="devices that share the model")
    return made


def shuffled(tokens: np.ndarray, special: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shuffles the tokens between special positions.

    Args:
      tokens: [B, T] ids.
      special: [B, T] bool, special tokens and padding, which stay.
      rng: generator of the order.
    """
    found = tokens.copy()
    for row, stays in zip(found, special, strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[1], stays, [1]])))
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            row[first:last] = rng.permutation(row[first:last])
    return found


def losses(
    run: pathlib.Path, num_examples: int, seed: int, tensor_parallel: int = 1
) -> dict[str, tuple[float, float]]:
    """Returns {objective: (loss on validation examples, loss on the shuffled examples)}.

    Args:
      run: run folder of the model.
      num_examples: number of validation examples.
      seed: seed of the shuffling and of masks.
      tensor_parallel: devices that share the model.

    Raises:
      ValueError: the run is not a pre-training of this project, or its corpus is not found.
    """
    import jax

    from scalelab import step
    from scalelab.data.loading import load_data
    from scalelab.eval import placement
    from scalelab.resources import host
    from scalelab.training import pretrained

    opened = pretrained.load(run)
    opened.check_alone()
    config = opened.config
    host.configure_jax(config.machine.compile_cache_dir, config.model.dtype)
    tokenizer = None if config.init is None else opened.tokenizer_dir  # the init run may be deleted
    store = load_data(config, opened.system, tokenizer_dir=tokenizer).phases[0].valid
    ids, placed = opened.tokenizer.special_ids, placement.place(opened, tensor_parallel)
    evaluate = jax.jit(step.make_eval_step(placed.net, opened.terms))
    rng = np.random.default_rng(seed)
    sums = collections.defaultdict(lambda: np.zeros((2, 2)))
    chosen = np.arange(min(num_examples, len(store)), dtype=np.int32)
    for number, start in enumerate(range(0, len(chosen), BATCH_SIZE)):
        examples = chosen[start : start + BATCH_SIZE]
        fill = placed.round_up(len(examples)) - len(examples)
        examples = np.pad(examples, (0, fill), constant_values=-1)  # padding rows, not counted
        batch = store.gather(examples, config.short.max_len) | {"examples": examples}
        places = np.arange(config.short.max_len)
        special = np.isin(batch["tokens"], list(ids.values())) | (
            places >= batch["lengths"][:, None]
        )
        mixed = batch | {"tokens": shuffled(batch["tokens"], special, rng)}
        key = jax.random.fold_in(jax.random.key(seed), number)
        for column, given in enumerate((batch, mixed)):
            found, _ = evaluate(placed.params, placed.put(given), key, None, placed.frozen)
            for name, pair in found.items():
                if name.endswith("_loss"):
                    sums[name.removesuffix("_loss")][column] += np.asarray(pair, float)
    return {name: tuple((s[:, 0] / np.maximum(s[:, 1], 1)).tolist()) for name, s in sums.items()}


def main(given: argparse.Namespace) -> None:
    """Measures and prints."""
    from scalelab.lab import tables

    found = losses(given.run, given.num_examples, given.seed, given.tensor_parallel)
    rows = [
        [name, f"{plain:.3f}", f"{mixed:.3f}", f"{mixed - plain:+.3f}"]
        for name, (plain, mixed) in found.items()
    ]
    print(tables.plain(("objective", "as it is", "shuffled", "difference"), rows), end="")


if __name__ == "__main__":
    cli.run(main, parser())
