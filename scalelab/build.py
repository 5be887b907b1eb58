"""From a config to the parts of a run: net, objectives, optimizer, and what a step costs."""

import types
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import optax

from scalelab import formats, objectives
from scalelab.config.durations import Budget
from scalelab.config.pretraining import Config
from scalelab.optim import adamw
from scalelab.resources import flops


def check_pairing(config: Config, system: types.ModuleType) -> None:
    """Refuses objectives that the net or the format cannot serve.

    Raises:
      ValueError: with the reason, and what would go together.
    """
    objectives.check(
        config.objectives,
        served=system.OBJECTIVES,
        causal=system.CAUSAL,
        has_pairs=formats.load(config.data.format).HAS_PAIRS,
    )


def make_net(config: Config, system: types.ModuleType) -> nn.Module:
    """Builds the system's net, unbound."""
    return system.build(
        num_heads=config.net.num_heads,
        width=config.net.width,
        num_layers=config.net.num_layers,
        ffn_width=config.net.ffn_width or 4 * config.net.width,
        vocab_size=config.tokenizer.vocab_size,
        max_len=config.net.max_len,
        dropout_rate=config.net.dropout_rate,
        dtype=jnp.dtype(config.net.dtype),
        remat=config.machine.remat,
        output_embedding=config.net.output_embedding,
    )


def make_objectives(config: Config, special_ids: dict[str, int]) -> tuple[Any, ...]:
    """Builds the objectives whose losses are summed.

    Args:
      config: the run.
      special_ids: token id of each role ("mask", "cls", ...).
    """
    return tuple(
        objectives.load(name).make(
            vocab_size=config.tokenizer.vocab_size,
            special_ids=special_ids,
            mask_rate=config.mask_rate,
        )
        for name in config.objectives
    )


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Builds the optimizer, at learning rate 1."""
    o = config.optim
    return adamw.adamw(
        beta1=o.beta1, beta2=o.beta2, eps=o.eps, weight_decay=o.weight_decay, clip_norm=o.clip_norm
    )


def step_flops(
    config: Config,
    system: types.ModuleType,
    made: tuple[Any, ...],
    params: Any,
    batch_size: int,
    length: int,
) -> flops.Flops:
    """Forward FLOPs of one step on a batch of `batch_size` examples padded to `length`."""
    return flops.of_batch(
        params,
        width=config.net.width,
        num_layers=config.net.num_layers,
        batch_size=batch_size,
        length=length,
        predicted=sum(objective.num_predicted(length) for objective in made),
        causal=system.CAUSAL,
    )


def costs_on_clock(clock: str, phases: Any, costs: list[flops.Flops]) -> list[float]:
    """What a step of each phase costs on a clock, in any unit; in seconds nobody knows yet: 1."""
    if clock == "tokens":
        return [p.batch_size * p.train.meta["num_tokens"] / len(p.train) for p in phases]
    return [cost.train for cost in costs] if clock == "flops" else [1.0 for _ in costs]


def name(config: Config) -> str:
    """What to call a run: "bert 2x128x2 seed 0"."""
    net = config.net
    return f"{config.system} {net.num_heads}x{net.width}x{net.num_layers} seed {config.seed}"


def describe(
    config: Config,
    data: Any,
    costs: list[flops.Flops],
    num_params: int,
    budget: Budget,
    ends: list[float],
) -> dict[str, str]:
    """What a run says of itself at its start: sizes, costs and the plan, ready to print."""
    net = config.net
    lines = {
        "n_model": f"{flops.n_model(net.width, net.num_layers):,} (12 L H^2)",
        "parameters": f"{num_params:,}",
        "objective": f"{config.objective} on {config.data.format}",
        "budget": f"{budget.total:,.0f} {budget.clock}, warm-up {budget.warmup:,.0f}",
    }
    start = 0.0
    for phase, cost, end in zip(data.phases, costs, ends, strict=True):
        lines[f"length {phase.max_len}"] = (
            f"{end - start:,.0f} {budget.clock} of batch {phase.batch_size};"
            f" {phase.steps_per_epoch:,} steps an epoch;"
            f" {cost.train / 1e9:,.1f} GFLOP a step: body {cost.body / cost.forward:.0%},"
            f" attention {cost.attention / cost.forward:.0%},"
            f" head {cost.head / cost.forward:.0%}, embedding {cost.embedding / cost.forward:.0%}"
        )
        start = end
    return lines | {key: str(value) for key, value in data.facts.items()}
