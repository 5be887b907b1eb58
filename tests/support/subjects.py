"""Systems and their compiled train steps at the tiny shape, once for all tests of a session."""

import functools
from typing import Any

import declared
import jax
import jax.numpy as jnp
import numpy as np
import tiny

from scalelab import sharding, state, step
from scalelab.objectives import CARRIED
from scalelab.optim.adamw import parameter_name

RATE = jnp.float32(1e-3)


class Subject:
    """A system and its compiled train step, dropout on; the optimizer keeps the gradients."""

    def __init__(self, name: str, mesh: Any = None, **fields: Any) -> None:
        self.name = name
        self.parts = tiny.parts(name, **fields)
        self.module = self.parts.module
        self.expected = declared.get(name)
        self.mesh = mesh or tiny.one_device()
        self.tx = tiny.keep_gradients(tiny.optimizer(self.parts.config))
        given = tiny.model(self.parts.net, self.parts.terms, self.tx)
        sizes = dict(max_len=tiny.LENGTH, batch_size=tiny.BATCH)
        self.fresh, self.placed = state.create(given, **sizes, seed=0, mesh=self.mesh)
        self.run = self.compile(self.parts)

    def compile(self, parts: tiny.Parts) -> Any:
        config = parts.config
        made = step.make_train_step(
            parts.net, parts.terms, self.tx, config.machine.num_microbatches
        )
        return step.compile_train(made, self.mesh, self.placed, self.fresh, self.batch(0))

    def put(self, batch: dict[str, Any]) -> dict[str, jax.Array]:
        return jax.device_put(batch, sharding.batch_sharding(self.mesh))

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
        """Metrics, gradients and parameters after the first step, by name."""
        after, metrics = self.run(self.state(), self.batch(seed), RATE)
        assert all(x.sharding.mesh.size == self.mesh.size for x in jax.tree.leaves(after.params))
        named = {f"metrics/{name}": np.array(pair) for name, pair in metrics.items()}
        for room, tree in (("gradients", after.opt_state[0]), ("params", after.params)):
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                named[f"{room}/{parameter_name(path)}"] = np.asarray(leaf)
        return named

    @functools.cached_property
    def hidden(self) -> Any:
        """Batch -> hidden states."""
        given = {"params": self.fresh.params, CARRIED: self.fresh.carried}
        return jax.jit(lambda batch: self.parts.net.apply(given, batch, train=False)[0])


@functools.cache
def get(name: str) -> Subject:
    """The subject of a system, made when it is first asked for."""
    return Subject(name)
