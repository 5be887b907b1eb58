"""Speed of greedy decoding with a cache, beside `generate` of `transformers`.

  python -m benchmarks.decode [--shape=12x768x12] [--batch_size=8] [--prompt_len=16]
      [--new_tokens=64] [--vocab_size=50257] [--repeats=5] [--threads=2] [--json=FILE]

Both sides continue the same random prompts with the same random weights (GPT-2) in float32,
alternately in one process; the numbers are medians of the repetitions. The peer is GPT2LMHeadModel
with its key-value cache, under `torch.inference_mode`. Compiling and laying out parameters are left
out. A repetition is one call, the reading of the prompts included. The program says how many tokens
are equal. Measure on an idle machine: PyTorch's threads spin while they wait.

Target: GPT-2 small, 8 prompts, 64 new tokens: at least 1.5x the peer.
"""

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import common
from scalelab.config import cli

if TYPE_CHECKING:
    from scalelab.resources.blueprint import Blueprint

STDDEV = 0.05  # of the weights: larger than usual, so that the best token leads


def make_params(run: "Blueprint") -> Any:
    """Makes random parameters."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        mean = "scale" in jax.tree_util.keystr(path)
        return jnp.asarray(mean + STDDEV * rng.standard_normal(leaf.shape, np.float32))

    return jax.tree_util.tree_map_with_path(draw, run.state.params)


class Ours:
    """The loop of scalelab.decode.

    Args:
      run: the abstract run, for its net.
      params: its parameters.
      prompts: [B, P].
    """

    def __init__(self, run: "Blueprint", params: Any, prompts: np.ndarray) -> None:
        from scalelab.decode import stepper

        self.stepper = stepper.prepare(run.net, params)
        self.prompts, self.max_len = list(prompts), run.config.net.max_len

    def __call__(self, new_tokens: int) -> np.ndarray:
        """Returns new tokens [B, new_tokens]."""
        from scalelab.decode import loop
        from scalelab.decode.choose import Rules

        sizes = {"max_new_tokens": new_tokens, "max_len": self.max_len, "end_token": None}
        found = loop.generate(self.stepper, self.prompts, Rules(), **sizes)
        return np.stack([text.tokens for text in found])


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Runs both sides alternately."""
    from scalelab.resources import blueprint

    about = common.describe(given)
    run = blueprint.draw_alone(
        "gpt2", given.shape, batch_size=1, length=given.prompt_len + given.new_tokens,
        vocab_size=given.vocab_size,
    )  # fmt: skip
    params, shape = make_params(run), (given.batch_size, given.prompt_len)
    prompts = np.random.default_rng(1).integers(0, given.vocab_size, shape, np.int32)
    sides: dict[str, Any] = {"ours": Ours(run, params, prompts)}
    if not about["missing_peer"]:
        from benchmarks import peers

        sides["peer"] = peers.Decoding(run, params, prompts, given.threads)
    written = {name: side(given.new_tokens) for name, side in sides.items()}  # ours compiles
    calls: dict[str, list[common.Spent]] = {name: [] for name in sides}
    for _ in range(given.repeats):
        for name, side in sides.items():
            calls[name].append(common.timed(side, given.new_tokens))
    amount = given.batch_size * given.new_tokens
    about["sides"] = {name: common.rates(amount, each) for name, each in calls.items()}
    if "peer" in sides:
        about["same_tokens"] = float((written["ours"] == written["peer"]).mean())
    return about


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"{common.heading(found)}\ngpt2 {found['shape']}, {found['vocab_size']:,} tokens, float32;"
        f" {found['batch_size']} prompts of {found['prompt_len']} tokens, {found['new_tokens']} new"
        f" ones each; {found['repeats']} repetitions\n\n{'greedy':8}{'tokens/s':>13}{'/CPU s':>13}"
    )
    sides = found["sides"]
    for name, made in sides.items():
        print(f"{name:8}{made['per_sec']:13,.0f}{made['per_cpu_sec']:13,.0f}")
    if "peer" in sides:
        ratio = sides["ours"]["per_sec"] / sides["peer"]["per_sec"]
        print(f"\n{ratio:.2f}x the peer; equal tokens: {found['same_tokens']:.1%}")


def parser() -> cli.Parser:
    """Returns the command line."""
    made = common.make_parser("decode", __doc__, repeats=5)
    made.add_argument("--shape", default="12x768x12")
    made.add_argument("--batch_size", type=int, default=8)
    made.add_argument("--prompt_len", type=int, default=16)
    made.add_argument("--new_tokens", type=int, default=64)
    made.add_argument("--vocab_size", type=int, default=50_257)
    return made


if __name__ == "__main__":
    common.start(parser(), measure, report)
