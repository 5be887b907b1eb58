"""Speed of scoring text with a memory, beside a sliding window of the same context.

  python -m benchmarks.memory [--shape=2x128x2] [--segment=64] [--memory_len=448]
      [--num_tokens=2048] [--batch_size=8] [--vocab_size=8192] [--repeats=3] [--threads=2]
      [--json=FILE]

Both sides score the tokens of one text with a Transformer-XL of random weights, through the
functions of `eval.lm`. With a memory, each segment is read once, behind the states of the tokens
before it (Dai et al. 2019, 3.2 and table 9). The window has `segment + memory_len` tokens and moves
by one token, as for a model without a memory. Because it is slow, it scores only some tokens, all
with a full context. Compiling is left out.

Target: the memory is at least 20 times as fast.
"""

import argparse
import dataclasses
import functools
from typing import Any

import numpy as np

from benchmarks import common

WINDOW_TOKENS = 64  # tokens that the sliding window scores in a repetition


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Runs both sides alternately."""
    import jax
    import jax.numpy as jnp

    from scalelab import sharding
    from scalelab.eval import likelihood, running_text, token_scores
    from scalelab.eval.placement import Placed
    from scalelab.training import blueprint

    about = common.describe(given)
    context = given.segment + given.memory_len
    run = blueprint.draw_alone(
        "transformer_xl", given.shape, batch_size=1, length=context, vocab_size=given.vocab_size
    )
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(0.05 * rng.standard_normal(leaf.shape, np.float32)),
        run.state.params,
    )
    text = np.random.default_rng(0).integers(1, given.vocab_size, given.num_tokens, np.int32)

    def place(memory_len: int) -> Placed:
        net = dataclasses.replace(run.net, memory_len=memory_len)
        return Placed(net, params, {}, sharding.make_mesh())

    def read(length: int, stride: int) -> likelihood.Reading:
        return likelihood.Reading((), (), None, length, stride)

    short = text[: context + WINDOW_TOKENS]
    wanted = np.arange(len(short)) >= context
    sides = {
        "memory": functools.partial(
            running_text.score, place(given.memory_len), text, np.array([0, len(text)]),
            read(given.segment, given.segment), 1, token_scores.nats,
        ),
        "window": functools.partial(
            likelihood.score, place(0), short, np.array([0, len(short)]), read(context, 1),
            given.batch_size, wanted=wanted,
        ),
    }  # fmt: skip
    for side in sides.values():
        side()  # compiles
    found = common.medians([sides] * given.repeats)
    amounts = {"memory": len(text), "window": WINDOW_TOKENS}
    about["sides"] = {name: common.rates(amounts[name], spent) for name, spent in found.items()}
    return about


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"{common.heading(found | {'missing_peer': None})}\nTransformer-XL {found['shape']},"
        f" {found['vocab_size']:,} tokens, float32; segments of {found['segment']} tokens behind"
        f" {found['memory_len']}\n"
    )
    sides = found["sides"]
    rows = [[k, f"{v['per_sec']:,.0f}", f"{v['per_cpu_sec']:,.0f}"] for k, v in sides.items()]
    common.print_table(("scoring", "tokens/s", "by CPU"), rows)
    print(f"\n{sides['memory']['per_sec'] / sides['window']['per_sec']:.0f}x the window")


parser = functools.partial(
    common.make_parser, "memory", __doc__, shape="2x128x2", segment=64, memory_len=448,
    num_tokens=2048, batch_size=8, vocab_size=8192, repeats=3, threads=2,
)  # fmt: skip


if __name__ == "__main__":
    common.start(parser(), measure, report)
