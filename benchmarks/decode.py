"""Speed of greedy decoding with a cache, beside `generate` of `transformers`.

  python -m benchmarks.decode [--shape=12x768x12] [--batch_size=8] [--prompt_len=16]
      [--new_tokens=64] [--repeats=5] [--threads=2] [--json=FILE] [--quick]

Both continue the same random prompts with the same random weights (GPT-2, 50,257 tokens) in float32
on so many threads, alternately in one process: ours, the peer, ours, ...; medians of the
repetitions. The peer is GPT2LMHeadModel with its key-value cache and its default attention, under
`torch.inference_mode`. What both do once is left out: compiling, laying out parameters. A
repetition is one call, the reading of the prompts included; the time of a step is that call's less
that of one new token alone, over the tokens between. That both write the same tokens is checked.

Measure on a machine that does nothing else: PyTorch's threads wait spinning for each other.

Target: GPT-2 small, 8 prompts, 64 new tokens: at least 1.5x the peer.
"""

import argparse
import collections
import os
import statistics
import time
from typing import Any

import numpy as np

from benchmarks import arguments as command_line
from benchmarks import side_by_side
from benchmarks.side_by_side import BUSY
from scalelab.runs import environment

VOCAB_SIZE = 50_257
STDDEV = 0.05  # of the weights: larger than usual, so that the best token leads
QUICK = {"shape": "2x8x2", "vocab_size": 97, "new_tokens": 6, "repeats": 2}


def initialise(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The net and random parameters."""
    import jax
    import jax.numpy as jnp
    from flax import linen as nn

    from scalelab import systems

    num_heads, width, num_layers = map(int, arguments.shape.split("x"))
    net = systems.load("gpt2").build(
        num_heads=num_heads,
        width=width,
        num_layers=num_layers,
        ffn_width=4 * width,
        vocab_size=arguments.vocab_size,
        max_len=arguments.prompt_len + arguments.new_tokens,
        dropout_rate=0.1,
    )
    one = jnp.zeros((1, 1), jnp.int32)
    batch = {"tokens": one, "lengths": one[0] + 1, "examples": one[0]}
    shapes = jax.eval_shape(lambda: nn.unbox(net.init(jax.random.key(0), batch, train=False)))
    rng = np.random.default_rng(0)

    def draw(path: tuple, leaf: Any) -> Any:
        mean = "scale" in jax.tree_util.keystr(path)
        return jnp.asarray(mean + STDDEV * rng.standard_normal(leaf.shape, np.float32))

    return net, jax.tree_util.tree_map_with_path(draw, shapes["params"])


class Ours:
    """The loop of scalelab.decode.

    Args:
      net: unbound.
      params: its parameters.
      prompts: [B, P].
      arguments: the command line.
    """

    def __init__(self, net: Any, params: Any, prompts: np.ndarray, arguments: Any) -> None:
        from scalelab.decode import stepper

        self.stepper = stepper.prepare(net, params)
        self.prompts = list(prompts)
        self.max_len = arguments.prompt_len + arguments.new_tokens

    def __call__(self, new_tokens: int) -> np.ndarray:
        """New tokens [B, new_tokens]."""
        from scalelab.decode import loop
        from scalelab.decode.choose import Rules

        sizes = {"max_new_tokens": new_tokens, "max_len": self.max_len, "end_token": None}
        found = loop.generate(self.stepper, self.prompts, Rules(), **sizes)
        return np.stack([text.tokens for text in found])


class Peer:
    """GPT2LMHeadModel with the same weights; arguments as of `Ours`."""

    def __init__(self, net: Any, params: Any, prompts: np.ndarray, arguments: Any) -> None:
        import torch
        import transformers

        del net
        torch.set_num_threads(arguments.threads)
        num_heads, width, num_layers = map(int, arguments.shape.split("x"))
        config = transformers.GPT2Config(
            vocab_size=arguments.vocab_size,
            n_embd=width,
            n_layer=num_layers,
            n_head=num_heads,
            n_positions=arguments.prompt_len + arguments.new_tokens,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.model = transformers.GPT2LMHeadModel(config).eval()
        side_by_side.give_weights(self.model, "gpt2", params)
        self.prompts = torch.tensor(prompts, dtype=torch.long)

    def __call__(self, new_tokens: int) -> np.ndarray:
        """New tokens [B, new_tokens]."""
        import torch

        with torch.inference_mode():
            found = self.model.generate(
                self.prompts,
                attention_mask=torch.ones_like(self.prompts),
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=0,
            )
        return found[:, self.prompts.shape[1] :].numpy()


def summary(calls: list[dict[int, side_by_side.Spent]], arguments: Any) -> dict[str, Any]:
    """Medians over the repetitions, and the seconds of each."""
    count = arguments.new_tokens

    def middle(of: Any) -> float:
        return statistics.median(map(of, calls))

    return {
        "tokens_per_sec": arguments.batch_size * count / middle(lambda call: call[count].wall),
        "tokens_per_cpu_sec": arguments.batch_size * count / middle(lambda call: call[count].cpu),
        "first_token_secs": middle(lambda call: call[1].wall),
        "step_secs": middle(lambda call: (call[count].wall - call[1].wall) / (count - 1)),
        "each": [call[count].wall for call in calls],
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs both, alternately."""
    import jax

    load = os.getloadavg()[0]
    environment.configure_jax(None, "float32")
    net, params = initialise(arguments)
    shape = (arguments.batch_size, arguments.prompt_len)
    prompts = np.random.default_rng(1).integers(0, arguments.vocab_size, shape, np.int32)
    left_out = side_by_side.peer_left_out()
    sides = {"ours": Ours(net, params, prompts, arguments)}
    if not left_out:
        sides["peer"] = Peer(net, params, prompts, arguments)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    del params
    begun = time.perf_counter()
    written = {"ours": sides["ours"](arguments.new_tokens)}
    compile_secs = time.perf_counter() - begun
    for name, side in sides.items():
        written[name] = side(arguments.new_tokens)
        side(1)
    calls = collections.defaultdict(list)
    for _ in range(arguments.repeats):
        for name, side in sides.items():
            calls[name].append({n: side_by_side.timed(side, n) for n in (1, arguments.new_tokens)})
    found: dict[str, Any] = {name: summary(each, arguments) for name, each in calls.items()}
    if not left_out:
        found["peer_versions"] = side_by_side.peer_versions()
        found["same_tokens"] = float((written["ours"] == written["peer"]).mean())
        found["ratio"] = found["ours"]["tokens_per_sec"] / found["peer"]["tokens_per_sec"]
    names = ("shape", "vocab_size", "batch_size", "prompt_len", "new_tokens", "repeats", "threads")
    return (
        found
        | {name: getattr(arguments, name) for name in names}
        | {
            "parameters": num_params,
            "compile_secs": compile_secs,
            "device": jax.devices()[0].device_kind,
            "load": load,
            "peer_left_out": left_out,
        }
    )


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"\ngpt2 {found['shape']}, {found['vocab_size']:,} tokens, {found['parameters']:,}"
        f" parameters, float32\n{found['device']}, {found['threads']} thread(s), load"
        f" {found['load']:.1f} at the start{BUSY if found['load'] > 0.5 else ''}\n"
        f"{found['batch_size']} prompts of {found['prompt_len']} tokens,"
        f" {found['new_tokens']} new ones each; {found['repeats']} repetitions\n"
    )
    columns = ("tokens/s", "/CPU s", "first token", "a step", "ratio")
    print(f"{'greedy':8}" + "".join(f"{column:>13}" for column in columns))
    for name in ("ours", "peer"):
        if name in found:
            made = found[name]
            cells = [
                f"{made['tokens_per_sec']:,.0f}",
                f"{made['tokens_per_cpu_sec']:,.0f}",
                f"{made['first_token_secs'] * 1e3:.1f} ms",
                f"{made['step_secs'] * 1e3:.1f} ms",
                f"{found['ratio']:.2f}x" if name == "ours" and "ratio" in found else "",
            ]
            print(f"{name:8}" + "".join(f"{cell:>13}" for cell in cells).rstrip())
    print(f"\ncompiled and run once in {found['compile_secs']:.1f} s")
    if found["peer_left_out"]:
        print(f"the peer is left out: {found['peer_left_out']}")
    else:
        print(f"peer: {found['peer_versions']}; equal tokens: {found['same_tokens']:.1%}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("decode", __doc__)
    made.add_argument("--shape", type=command_line.shape, default="12x768x12",
                      help="heads x width x layers")  # fmt: skip
    made.add_argument("--batch_size", type=command_line.count(), default=8)
    made.add_argument("--prompt_len", type=command_line.count(), default=16)
    made.add_argument("--new_tokens", type=command_line.count(2), default=64)
    command_line.add_common(made, repeats=5, quick="a tiny net and few tokens")
    made.set_defaults(vocab_size=VOCAB_SIZE)
    return command_line.read(made, argv, QUICK)


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    found = measure(arguments)
    side_by_side.keep(found, arguments.json)
    report(found)


if __name__ == "__main__":
    side_by_side.start(parse, main)
