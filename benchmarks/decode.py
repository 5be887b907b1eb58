"""Speed of greedy decoding with a cache, beside `generate` of `transformers`.

  python -m benchmarks.decode [--system=gpt2] [--shape=12x768x12] [--batch_size=8]
      [--prompt_len=16] [--new_tokens=64] [--vocab_size=50257] [--repeats=5] [--threads=2]
      [--json=FILE]

Both sides continue the same random prompts with the same random weights in float32, alternately in
one process; the numbers are medians of the repetitions. A system with a source, such as t5, reads
the prompts there. The peer is the system's class with its key-value cache, under
`torch.inference_mode`. Compiling and laying out parameters are left
out. A repetition is one call, the reading of the prompts included. The program says how many tokens
are equal. Measure on an idle machine: PyTorch's threads spin while they wait.

Targets: at least 1.5x the peer, for GPT-2 small with 8 prompts and 64 new tokens, and for T5 at
2x128x2 and 2x256x4.
"""

import argparse
import functools
from typing import Any

import numpy as np

from benchmarks import common

STDDEV = 0.05  # weights are larger than usual, so that the best token leads


def generate(
    stepper: Any, prompts: np.ndarray, new_tokens: int, max_len: int, start: int | None
) -> np.ndarray:
    """Generates with scalelab.decode: new tokens [B, new_tokens].

    Args:
      stepper: a `decode.stepper.Stepper`.
      prompts: [B, P] int32, prompts; or sources, if the model reads one.
      new_tokens: tokens to generate for each row; none ends earlier.
      max_len: positions of the model.
      start: id that begins a text behind a source; None: the model reads no source.
    """
    from scalelab.decode import loop
    from scalelab.decode.choose import Rules

    sources = None if start is None else list(prompts)
    begun = list(prompts) if start is None else [np.array([start], np.int32)] * len(prompts)
    sizes = {"max_new_tokens": new_tokens, "max_len": max_len, "end_token": None}
    found = loop.generate(stepper, begun, Rules(), sources=sources, **sizes)
    return np.stack([text.tokens for text in found])


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Runs both sides alternately."""
    import jax

    from scalelab import systems
    from scalelab.decode import stepper
    from scalelab.training import blueprint

    about, rng = common.describe(given), np.random.default_rng(0)
    run = blueprint.draw_alone(
        given.system, given.shape, batch_size=1, length=given.prompt_len + given.new_tokens,
        vocab_size=given.vocab_size,
    )  # fmt: skip

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        mean = "scale" in jax.tree_util.keystr(path)
        return jax.numpy.asarray(mean + STDDEV * rng.standard_normal(leaf.shape, np.float32))

    params = jax.tree_util.tree_map_with_path(draw, run.state.params)
    size = (given.batch_size, given.prompt_len)
    prompts = np.random.default_rng(1).integers(0, given.vocab_size, size, np.int32)
    prepared, max_len = stepper.prepare(run.net, params), run.config.model.max_len
    start = systems.special_ids(run.system)["start"] if run.system.HAS_SOURCE else None
    sides = {
        "ours": functools.partial(generate, prepared, prompts, given.new_tokens, max_len, start)
    }
    if not about["missing_peer"]:
        from benchmarks import peers

        peer = peers.Decoding(run, params, prompts, given.threads, start)
        sides["peer"] = functools.partial(peer, given.new_tokens)
    written = {name: side() for name, side in sides.items()}  # ours compiles
    amount = given.batch_size * given.new_tokens
    found = common.medians([sides] * given.repeats)
    about["sides"] = {name: common.rates(amount, spent) for name, spent in found.items()}
    if "peer" in sides:
        about["same_tokens"] = float((written["ours"] == written["peer"]).mean())
    return about


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"{common.heading(found)}\n{found['system']} {found['shape']},"
        f" {found['vocab_size']:,} tokens, float32; {found['batch_size']} prompts of"
        f" {found['prompt_len']} tokens, {found['new_tokens']} new ones each;"
        f" {found['repeats']} repetitions\n"
    )
    sides = found["sides"]
    rows = [[k, f"{v['per_sec']:,.0f}", f"{v['per_cpu_sec']:,.0f}"] for k, v in sides.items()]
    common.print_table(("greedy", "tokens/s", "by CPU"), rows)
    if "peer" in sides:
        ratio = sides["ours"]["per_sec"] / sides["peer"]["per_sec"]
        print(f"\n{ratio:.2f}x the peer; equal tokens: {found['same_tokens']:.1%}")


parser = functools.partial(
    common.make_parser, "decode", __doc__, shape="12x768x12", system="gpt2", batch_size=8,
    prompt_len=16, new_tokens=64, vocab_size=50_257, repeats=5, threads=2,
)  # fmt: skip


if __name__ == "__main__":
    common.start(parser(), measure, report)
