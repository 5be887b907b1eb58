"""What benchmarks.step measures: a system, a shape and a batch; and our step of it."""

import argparse
import dataclasses
import functools
import time
import types
from typing import Any

import numpy as np

MASK_RATE, LEARNING_RATE = 0.15, 1e-4
ADAMW = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01, "clip_norm": 1.0}


@dataclasses.dataclass(frozen=True)
class Case:
    """One system at one shape.

    Attributes:
      system: a file of scalelab/systems.
      shape: heads x width x layers.
      vocab_size: V.
      batch_size: B.
      length: T, tokens of an example; none is padding.
      dropout_rate: of all dropouts.
      threads: of both sides, on CPU.
    """

    system: str
    shape: str
    vocab_size: int
    batch_size: int
    length: int
    dropout_rate: float
    threads: int

    @classmethod
    def of(cls, arguments: argparse.Namespace, system: str, shape: str) -> "Case":
        """The command line's sizes with a system and a shape."""
        fields = [f.name for f in dataclasses.fields(cls) if f.name not in ("system", "shape")]
        return cls(system, shape, **{name: getattr(arguments, name) for name in fields})

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Heads, width, layers."""
        num_heads, width, num_layers = map(int, self.shape.split("x"))
        return num_heads, width, num_layers

    @property
    def max_len(self) -> int:
        """Positions of the net, as the protocol has them."""
        return max(512, self.length)

    @functools.cached_property
    def module(self) -> types.ModuleType:
        """The system's file."""
        from scalelab import systems

        return systems.load(self.system)

    @functools.cached_property
    def special_ids(self) -> dict[str, int]:
        """Roles of special tokens -> ids."""
        return {role: i for i, (role, _) in enumerate(self.module.SPECIAL_TOKENS)}

    @functools.cached_property
    def objectives(self) -> list[Any]:
        """The system's own."""
        from scalelab import objectives

        sizes = {"vocab_size": self.vocab_size, "special_ids": self.special_ids}
        names = self.module.OBJECTIVES
        return [objectives.load(name).make(**sizes, mask_rate=MASK_RATE) for name in names]

    @property
    def num_predicted(self) -> int:
        """Positions of an example that pass through the token head."""
        return sum(objective.num_predicted(self.length) for objective in self.objectives)

    def net(self) -> Any:
        """The unbound net."""
        num_heads, width, num_layers = self.sizes
        return self.module.build(
            num_heads=num_heads,
            width=width,
            num_layers=num_layers,
            ffn_width=4 * width,
            vocab_size=self.vocab_size,
            max_len=self.max_len,
            dropout_rate=self.dropout_rate,
        )

    def batch(self) -> dict[str, np.ndarray]:
        """Random tokens in the system's frame, all rows full."""
        rng = np.random.default_rng(0)
        size, length = self.batch_size, self.length
        tokens = rng.integers(len(self.special_ids), self.vocab_size, (size, length), np.int32)
        full = np.full(size, length, np.int32)
        batch = {
            "tokens": tokens,
            "lengths": full,
            "boundaries": full,
            "examples": np.arange(size, dtype=np.int32),
            "num_bytes": full,
            "num_text_tokens": full,
        }
        ids = {text: i for i, (_, text) in enumerate(self.module.SPECIAL_TOKENS)}
        begin, between, end = ([ids[text] for text in part] for part in self.module.FRAME)
        tokens[:, : len(begin)] = begin
        tokens[:, length - len(end) :] = end
        if any(objective.needs_pairs for objective in self.objectives):
            tokens[:, length // 2 - len(between) : length // 2] = between
            batch["boundaries"] = full // 2
            batch["nsp_labels"] = np.arange(size, dtype=np.int32) % 2
        return batch

    def flops(self, params: Any) -> Any:
        """Useful FLOPs of the forward pass by term, scalelab.resources.flops.Flops."""
        from scalelab.resources import flops

        _, width, num_layers = self.sizes
        return flops.of_batch(
            params,
            width=width,
            num_layers=num_layers,
            batch_size=self.batch_size,
            length=self.length,
            predicted=self.num_predicted,
            causal=self.module.CAUSAL,
        )


def fresh_parameters(case: Case) -> Any:
    """The net's parameters in the abstract."""
    import flax.linen as nn
    import jax
    import optax

    from scalelab import state

    fresh = lambda key: nn.unbox(  # noqa: E731
        state.fresh(key, case.net(), case.objectives, optax.identity(), max_len=case.length).params
    )
    return jax.eval_shape(fresh, jax.random.key(0))


class Ours:
    """The step of scalelab.train, on one batch over and over.

    Args:
      case: what is measured.
      net: unbound; None: the case's.
      tx: the optimizer; None: AdamW.
    """

    def __init__(self, case: Case, *, net: Any = None, tx: Any = None) -> None:
        import jax

        from scalelab import sharding, state, step
        from scalelab.optim import adamw

        self.case, self.batch, self.key = case, case.batch(), jax.random.key(1)
        net, tx = net or case.net(), tx or adamw.adamw(**ADAMW)
        mesh = sharding.make_mesh()
        self.state, placed = state.create(
            net, case.objectives, tx, max_len=case.length, seed=0, mesh=mesh
        )
        begun = time.perf_counter()
        made = step.make_train_step(net, case.objectives, tx)
        self.run = step.compile_train(made, mesh, placed, self.state, self.batch)
        self.compile_secs = time.perf_counter() - begun
        self.eval_step = step.make_eval_step(net, case.objectives)

    def memory_bytes(self) -> int:
        """State, batch and temporary buffers of a step, as XLA lays them out."""
        found = self.run.memory_analysis()
        return found.argument_size_in_bytes + found.temp_size_in_bytes

    def masked(self) -> dict[str, np.ndarray]:
        """The batch as the objectives prepare it."""
        import jax

        from scalelab import state

        masks = state.named_key(self.key, "mask")
        return jax.device_get(state.prepare(self.batch, self.case.objectives, masks))

    def loss(self) -> float:
        """Of the masked batch, without dropout."""
        import jax

        found = jax.jit(self.eval_step)(self.state.params, self.batch, self.key)
        return sum(
            float(total / weight) for k, (total, weight) in found.items() if k.endswith("_loss")
        )

    def __call__(self, steps: int) -> None:
        """Takes steps, and waits for the last."""
        import jax

        for _ in range(steps):
            self.state, _ = self.run(self.state, self.batch, np.float32(LEARNING_RATE))
        jax.block_until_ready(self.state)
