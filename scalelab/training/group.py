"""Runs at the same step of the same phase, which one program trains until they part."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab import objectives as objectives_lib
from scalelab import sharding
from scalelab.data.batches import evaluation_batches
from scalelab.runs import metrics, vmapped
from scalelab.runs.run import Recorder
from scalelab.training.setup import Setup


class Group:
    """Takes the states of its runs and holds them, stacked, until `part`.

    Args:
      setup: what the runs share.
      recorders: of the runs; one alone trains as if there were no groups.

    Attributes:
      recorders: of the runs.
      phase: the data of the phase that they are in, as the first has it.
    """

    def __init__(self, setup: Setup, recorders: Sequence[Recorder]) -> None:
        self._setup, self.recorders = setup, recorders
        self.phase, self._placed = recorders[0].phase, recorders[0].placed
        self._batches = [recorder.batches() for recorder in recorders]
        self._size = size = setup.size(recorders[0].run.phase, len(recorders))
        self._state = vmapped.stack(self._filled([recorder.run.state for recorder in recorders]))
        if size > 1:
            self._state = jax.device_put(self._state, vmapped.placed(self._placed, size))
            self._forget()
        seeds = self._filled([recorder.config.seed for recorder in recorders])
        keys = [objectives_lib.named_key(jax.random.key(seed), "eval") for seed in seeds]
        self._eval_keys = keys[0] if size == 1 else jnp.stack(keys)
        spent: dict[str, float] = {}
        with metrics.timed(spent, "compile_secs"):
            batch = self._put(self.batch_at(self.step))
            self._train, self._evaluate = setup.steps(
                recorders[0].run.phase, self._placed, self._state, batch, self._eval_keys
            )
        self._share(spent)
        for k, recorder in enumerate(recorders):
            recorder.window.join(k, size, len(self))

    def __len__(self) -> int:
        return len(self.recorders)

    def _filled(self, values: list[Any]) -> list[Any]:
        """What each run has, and again what the first has for whom nobody is there."""
        return values + [values[0]] * (self._size - len(self))

    @property
    def step(self) -> int:
        """Steps taken by each of its runs."""
        return self.recorders[0].run.clocks.steps

    def batch_at(self, step: int) -> dict[str, np.ndarray]:
        """The batches of a step, stacked."""
        return vmapped.stack_rows(self._filled([batches(step) for batches in self._batches]))

    def _put(self, batch: dict[str, np.ndarray]) -> Any:
        return sharding.put_batch(batch, self._setup.mesh, self.phase.batch_size, self._size)

    def _share(self, spent: dict[str, float]) -> None:
        """Divides the seconds of what was done for all: those of the runs add up to them."""
        for recorder in self.recorders:
            for name, secs in spent.items():
                recorder.timers[name] += secs / len(self)

    # --- A step, and what may follow it ----------------

    def advance(self, batch: dict[str, np.ndarray]) -> None:
        """Starts a step of every run on these batches."""
        rates = vmapped.stack_rows(self._filled([one.rate() for one in self.recorders]))
        self._state, pairs = self._train(self._state, self._put(batch), rates)
        for recorder in self.recorders:
            recorder.stepped(pairs)

    def settle(self) -> list[Recorder]:
        """Waits for the steps under way; returns the runs that can go on."""
        for recorder in self.recorders:
            recorder.settle()
        return [recorder for recorder in self.recorders if recorder.failed is None]

    def restart(self) -> None:
        """Starts the clocks again after something that is not training; nothing may be pending."""
        for recorder in self.recorders:
            recorder.window.restart()

    def validate(self) -> list[dict[str, float]]:
        """The metrics of each run on the validation examples."""
        setup, phase = self._setup, self.phase
        setup.measure_peak()
        spent: dict[str, float] = {}
        with metrics.timed(spent, "eval_secs"):
            num_batches = math.ceil(setup.config.eval.num_examples / phase.batch_size)
            rows = sharding.host_rows(setup.mesh, phase.batch_size)
            stream = evaluation_batches(phase.valid, phase.batch_size, phase.max_len, num_batches)
            pairs = []
            for k, batch in enumerate(stream):
                ours = {name: v[rows] for name, v in batch.items()}
                put = sharding.put_batch(ours, setup.mesh, phase.batch_size)
                pairs.append(self._evaluate(self._state.params, put, self._eval_key(k)))
            found = jax.device_get(pairs)
            means = [
                metrics.summarise_eval(
                    metrics.sum_pairs(vmapped.pick(found, k, self._size)), setup.token_losses
                )
                for k in range(len(self))
            ]
        self._share(spent)
        return means

    def _eval_key(self, k: int) -> jax.Array:
        if self._size == 1:
            return jax.random.fold_in(self._eval_keys, k)
        return jax.vmap(jax.random.fold_in, (0, None))(self._eval_keys, k)

    # --- States of single runs ----------------

    def hand_out(self, recorder: Recorder) -> None:
        """Gives a run its own state, as of now, until the next step."""
        index = self.recorders.index(recorder)
        own = vmapped.pick_state(self._state, index, self._size)
        recorder.run.state = own if self._size == 1 else jax.device_put(own, self._placed)

    def take_back(self) -> None:
        """Ends what `hand_out` gave, whose memory is wanted."""
        if self._size > 1:
            self._forget()

    def _forget(self) -> None:
        for recorder in self.recorders:
            recorder.run.state = None

    def part(self) -> None:
        """Gives every run its own state; the group has none from then on."""
        for recorder in self.recorders:
            self.hand_out(recorder)
        self._state = None
