"""Where the time of a step goes: the step with one part left out, and its matrix products alone.

  python -m benchmarks.profile [--systems=bert] [--shapes=2x128x2,...] [--parts=dropout,...]
      [--candidates=fused_qkv,...] [--repeats=5] [--json=FILE] [--quick] [sizes as benchmarks.step]

Alternately in one process: the whole step, the step without each part, and the floor; medians over
the repetitions. What a part takes is the difference. Parts overlap on two cores and share passes
over memory, so that they need not add up; by CPU time of all threads they nearly do.

  dropout      no mask is drawn or applied
  softmax      attention weights are the scores themselves
  norms        layer norms only scale and shift
  gelu         the activation is the identity
  entropy      the head's products alone: scores are their own softmax, and nothing is summed
  head         no masked tokens are predicted: no head, no table's gradient from it (masked nets)
  lookup       no gradient through the look-up of token embeddings
  optimizer    parameters move by their gradient: no clipping, no moments, no decay

and, where --candidates names them, with something else in a part's place:

  fused_qkv              query, key and value as one product, of kernels side by side
  dot_product_attention  jax.nn's, which has no dropout: with --dropout_rate=0 alone
  padded_vocabulary      as many tokens as the next multiple of 128
  one_pass_norm          both moments in one pass over the sum, and a gradient that is written out
  dropout_16_bits        half a random word for each decision
  dropout_mask_kept      masks are written by the forward pass and read by the backward pass
  dropout_mask_again     masks are drawn again in the backward pass
"""

import argparse
import collections
import contextlib
import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any
from unittest import mock

from benchmarks import arguments as command_line
from benchmarks import candidates, side_by_side, step
from benchmarks.floor import Floor, Peak
from benchmarks.step_case import Case, Ours

PARTS = ("dropout", "softmax", "norms", "gelu", "entropy", "head", "lookup", "optimizer")
KINDS = {"step_secs": "wall", "step_cpu_secs": "cpu"}


def without(case: Case, part: str) -> Ours:
    """Our step, one part left out."""
    import optax

    if part == "dropout":
        return Ours(dataclasses.replace(case, dropout_rate=0.0))
    if part == "optimizer":
        return Ours(case, tx=optax.scale(-1.0))
    if part == "head":
        case = dataclasses.replace(case)
        case.__dict__["objectives"] = [o for o in case.objectives if o.needs_pairs]
        return Ours(case)
    with patched(case, part):
        return Ours(case)


@contextlib.contextmanager
def patched(case: Case, part: str) -> Iterator[None]:
    """The nets' parts, one of them replaced by what costs next to nothing."""
    import jax
    from flax import linen as nn

    from scalelab.nn import axes, embed
    from scalelab.nn.named import parameter
    from scalelab.objectives import xent

    class Shift(nn.Module):
        epsilon: float

        @nn.compact
        def __call__(self, x: Any) -> Any:
            shape, init = (x.shape[-1],), nn.initializers
            scale = parameter(self, "scale", init.ones_init(), (axes.NORM,), shape)
            return x * scale + parameter(self, "bias", init.zeros_init(), (axes.NORM,), shape)

    def as_they_are(scores: Any) -> Any:
        ones = jax.numpy.ones_like(scores[0][:, 0])
        return scores, ones, ones

    def look_up(self: Any, ids: Any) -> Any:
        return jax.numpy.take(jax.lax.stop_gradient(self.table), ids, axis=0, mode="clip")

    with contextlib.ExitStack() as stack:
        replace = lambda *arguments: stack.enter_context(mock.patch.object(*arguments))  # noqa: E731
        if part == "softmax":
            replace(jax.nn, "softmax", lambda x, axis: x)
        elif part == "norms":
            replace(case.module, "LayerNorm", Shift)
        elif part == "lookup":
            replace(embed.Embed, "__call__", look_up)
        elif part == "entropy":
            replace(xent, "_softmax_parts", as_they_are)
        else:
            name = next(n for n in ("gelu_exact", "gelu_tanh") if hasattr(case.module, n))
            replace(case.module, name, lambda x: x)
        yield


def measure_case(case: Case, arguments: argparse.Namespace, peak: Peak) -> dict[str, Any]:
    """Runs the whole step, the floor and every variant, alternately."""
    sides: dict[str, Any] = {"whole": Ours(case), "floor": Floor(case)}
    masked = any(objective.name == "mlm" for objective in case.objectives)
    paired = any(objective.needs_pairs for objective in case.objectives)
    for part in arguments.parts:
        if part != "head" or (masked and paired):
            sides[f"without {part}"] = without(case, part)
    for name in arguments.candidates:
        sides[f"with {name}"] = candidates.with_candidate(case, name)
    for _ in range(step.UNTIMED):
        for side in sides.values():
            side(1)
    calls = collections.defaultdict(list)
    for _ in range(arguments.repeats):
        peak()
        for name, side in sides.items():
            calls[name].append(side_by_side.timed(side, 1))
    found: dict[str, Any] = {"system": case.system, "shape": case.shape, "sides": {}}
    for name in sides:
        made = found["sides"][name] = step.summary(calls[name], case, 1)
        pairs = list(zip(calls[name], calls["whole"], strict=True))
        for kind, of in KINDS.items():
            shares = (getattr(own, of) / getattr(whole, of) for own, whole in pairs)
            made[f"share_{kind}"] = 1 - statistics.median(shares)
    return found


def report(found: dict[str, Any]) -> None:
    """Prints a table for each system and shape."""
    print(
        f"\n{found['batch_size']} x {found['length']}, {found['vocab_size']:,} tokens, dropout"
        f" {found['dropout_rate']}, {found['repeats']} repetitions, load {found['load']:.1f}"
    )
    for case in found["cases"]:
        print(f"\n{case['system']} {case['shape']}\n")
        print("| | ms | CPU ms | saves | by CPU |\n|---|---|---|---|---|")
        for name, made in case["sides"].items():
            print(
                f"| {name} | {made['step_secs'] * 1e3:,.1f} | {made['step_cpu_secs'] * 1e3:,.1f}"
                f" | {made['share_step_secs']:.1%} | {made['share_step_cpu_secs']:.1%} |"
            )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("profile", __doc__)
    command_line.add_case(made, list(step.SHAPES))
    parts = command_line.listed(command_line.one_of("part", PARTS), least=0)
    made.add_argument("--parts", type=parts, default=list(PARTS),
                      help="what to leave out, each alone")  # fmt: skip
    others = command_line.listed(command_line.one_of("candidate", candidates.NAMES), least=0)
    made.add_argument("--candidates", type=others, default=[], help="what to put in a part's place")
    command_line.add_common(made, repeats=5, quick="a tiny net and short examples")
    made.set_defaults(steps=1)
    return command_line.read(made, argv, step.QUICK)


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    found = step.measure(arguments, measure_case)
    side_by_side.keep(found, arguments.json)
    report(found)


if __name__ == "__main__":
    side_by_side.start(parse, main)
