"""Systems whose tiny train step is compiled once for all tests of a session."""

import functools
from typing import Any

import declared
import jax
import jax.numpy as jnp
import numpy as np
import several_devices
import tiny

from scalelab import sharding, state, step

RATE = jnp.float32(1e-3)


class Subject:
    """A system and its compiled train step, dropout on; the optimizer keeps the gradients."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parts = tiny.parts(name)
        self.module = self.parts.module
        self.expected = declared.get(name)
        self.mesh = tiny.one_device()
        self.fresh, self.placed = state.create(
            self.parts.net,
            self.parts.terms,
            self.tx,
            max_len=tiny.LENGTH,
            seed=0,
            mesh=self.mesh,
        )
        self.run = self.compile(self.parts)

    @functools.cached_property
    def tx(self) -> Any:
        return tiny.keep_gradients(tiny.optimizer(self.parts.config))

    def compile(self, parts: tiny.Parts) -> Any:
        config = parts.config
        made = step.make_train_step(
            parts.net, parts.terms, self.tx, config.machine.num_microbatches
        )
        return step.compile_train(made, self.mesh, self.placed, self.fresh, self.batch(0))

    def put(self, batch: dict[str, Any]) -> dict[str, jax.Array]:
        return sharding.put_batch(batch, self.mesh, len(batch["tokens"]))

    def batch(self, seed: int, **changes: Any) -> dict[str, jax.Array]:
        return self.put(tiny.batch(self.module, seed) | changes)

    def state(self) -> state.TrainState:
        """A copy of the fresh state, safe to donate."""
        return jax.tree.map(jnp.copy, self.fresh)

    def first_step(
        self, batch: dict[str, jax.Array], run: Any = None
    ) -> tuple[dict[str, Any], Any]:
        """Metrics and gradients of the first step on `batch`, on the host."""
        after, metrics = (run or self.run)(self.state(), batch, RATE)
        return jax.device_get(metrics), jax.device_get(after.opt_state[0])

    def arrays(self, seed: int) -> dict[str, np.ndarray]:
        """All that the first step makes, by name."""
        after, metrics = self.run(self.state(), self.batch(seed), RATE)
        return several_devices.arrays(*jax.device_get((metrics, after)))

    def hidden(self, batch: dict[str, Any]) -> jax.Array:
        return self._hidden(self.fresh.params, batch)

    @functools.cached_property
    def _hidden(self) -> Any:
        return jax.jit(
            lambda params, batch: self.parts.net.apply({"params": params}, batch, train=False)[0]
        )


@functools.cache
def get(name: str) -> Subject:
    """The subject of a system, made when it is first asked for."""
    return Subject(name)
