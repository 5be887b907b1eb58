"""Speed of greedy decoding with a cache, beside `generate` of `transformers`.

  python -m benchmarks.decode [--shape=12x768x12] [--batch_size=8] [--prompt_len=16]
      [--new_tokens=64] [--repeats=5] [--threads=2] [--json=FILE] [--quick]

Both sides continue the same random prompts with the same random weights (GPT-2, 50,257 tokens) in
float32, alternately in one process; the numbers are medians of the repetitions. The peer is
GPT2LMHeadModel with its key-value cache, under `torch.inference_mode`. Compiling and laying out
parameters are left out. A repetition is one call, the reading of the prompts included; the time of
a step is that call's less that of one new token alone, over the tokens between. The program says
how many tokens are equal. Measure on an idle machine: PyTorch's threads spin while they wait.

Target: GPT-2 small, 8 prompts, 64 new tokens: at least 1.5x the peer.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np

from benchmarks import common

VOCAB_SIZE = 50_257
STDDEV = 0.05  # of the weights: larger than usual, so that the best token leads
QUICK = {"shape": "2x8x2", "vocab_size": 97, "new_tokens": 6, "repeats": 2}


def make_net(given: argparse.Namespace) -> tuple[Any, Any]:
    """Makes the net and random parameters."""
    import jax
    import jax.numpy as jnp

    run = common.abstract_run(
        "gpt2",
        given.shape,
        batch_size=1,
        length=given.prompt_len + given.new_tokens,
        vocab_size=given.vocab_size,
    )
    rng = np.random.default_rng(0)

    def draw(path: tuple, leaf: Any) -> Any:
        mean = "scale" in jax.tree_util.keystr(path)
        return jnp.asarray(mean + STDDEV * rng.standard_normal(leaf.shape, np.float32))

    return run, jax.tree_util.tree_map_with_path(draw, run.state.params)


class Ours:
    """The loop of scalelab.decode.

    Args:
      run: the abstract run, for its net.
      params: its parameters.
      prompts: [B, P].
    """

    def __init__(self, run: Any, params: Any, prompts: np.ndarray) -> None:
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
    import jax

    about = common.describe_machine()
    run, params = make_net(given)
    shape = (given.batch_size, given.prompt_len)
    prompts = np.random.default_rng(1).integers(0, given.vocab_size, shape, np.int32)
    sides: dict[str, Any] = {"ours": Ours(run, params, prompts)}
    if not about["missing_peer"]:
        from benchmarks import peers

        sizes = {"vocab_size": given.vocab_size, "max_len": run.config.net.max_len}
        net = common.split_shape(given.shape)
        sides["peer"] = peers.Decoding(net, sizes, params, prompts, given.threads)
        about["peer"] = peers.describe_versions()
    begun = time.perf_counter()
    written = {"ours": sides["ours"](given.new_tokens)}
    compile_secs = time.perf_counter() - begun
    for name, side in sides.items():
        written[name] = side(given.new_tokens)
        side(1)
    calls: dict[str, list[Any]] = {name: [] for name in sides}
    first: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(given.repeats):
        for name, side in sides.items():
            first[name].append(common.timed(side, 1).wall)
            calls[name].append(common.timed(side, given.new_tokens))
    found: dict[str, Any] = {}
    for name, each in calls.items():
        tails = [call.wall - one for call, one in zip(each, first[name], strict=True)]
        found[name] = common.rates(given.batch_size * given.new_tokens, each) | {
            "first_token_secs": statistics.median(first[name]),
            "step_secs": statistics.median(tails) / (given.new_tokens - 1),
        }
    if "peer" in sides:
        about["same_tokens"] = float((written["ours"] == written["peer"]).mean())
        about["ratio"] = found["ours"]["per_sec"] / found["peer"]["per_sec"]
    names = ("shape", "vocab_size", "batch_size", "prompt_len", "new_tokens", "repeats", "threads")
    return about | {name: getattr(given, name) for name in names} | {
        "sides": found,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "compile_secs": compile_secs,
    }  # fmt: skip


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"\ngpt2 {found['shape']}, {found['vocab_size']:,} tokens, {found['parameters']:,}"
        f" parameters, float32\n{common.heading(found)}\n"
        f"{found['batch_size']} prompts of {found['prompt_len']} tokens,"
        f" {found['new_tokens']} new ones each; {found['repeats']} repetitions;"
        f" compiled and run once in {found['compile_secs']:.1f} s\n"
    )
    columns = ("tokens/s", "/CPU s", "first token", "a step")
    print(f"{'greedy':8}" + "".join(f"{column:>13}" for column in columns))
    for name, made in found["sides"].items():
        first, step = (f"{made[k] * 1e3:.1f} ms" for k in ("first_token_secs", "step_secs"))
        cells = (f"{made['per_sec']:,.0f}", f"{made['per_cpu_sec']:,.0f}", first, step)
        print(f"{name:8}" + "".join(f"{cell:>13}" for cell in cells))
    if "peer" in found:
        print(
            f"\n{found['ratio']:.2f}x the peer: {found['peer']}; equal tokens:"
            f" {found['same_tokens']:.1%}"
        )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = common.make_parser("decode", __doc__, repeats=5)
    made.add_argument("--shape", type=common.shape, default="12x768x12")
    made.add_argument("--batch_size", type=common.count(), default=8)
    made.add_argument("--prompt_len", type=common.count(), default=16)
    made.add_argument("--new_tokens", type=common.count(2), default=64)
    made.set_defaults(vocab_size=VOCAB_SIZE)
    return common.parse(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Measures and prints."""
    found = measure(given)
    common.write_json(found, given.json)
    report(found)


if __name__ == "__main__":
    common.start(parse, main)
