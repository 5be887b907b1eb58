"""Trainings in the process of a test, at a tiny shape: what they did, and ways to stop them."""

import contextlib
import dataclasses
import json
import pathlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import sharding, state, step, train
from scalelab.config import pretraining as config_lib
from scalelab.records import metrics, plots
from scalelab.training import checkpoint

# 0.9 / 8 to 0.1 / 4 of 24 steps: 20 of batch 8 at length 32, then 4 of batch 4 at length 64.
STEPS, SHORT_STEPS = 24, 20


def fields(cache_dir: pathlib.Path) -> dict[str, Any]:
    return tiny.small(cache_dir) | dict(
        long__max_len=64, long__batch_size=4, optim__learning_rate=1e-2, eval__every_steps=10,
        eval__num_examples=32, machine__loader="numpy", machine__compile_cache_dir=None,
        machine__checkpoint_every_steps=6, machine__log_every_steps=4,
    )  # fmt: skip


class Killed(BaseException):
    """What ends a run at once."""


@dataclasses.dataclass
class Record:
    """What a run did: its batches, states and printed lines; `result` if it finished."""

    workdir: pathlib.Path
    batches: dict[int, dict[str, np.ndarray]] = dataclasses.field(default_factory=dict)
    states: dict[int, state.TrainState] = dataclasses.field(default_factory=dict)
    best: dict[int, float] = dataclasses.field(default_factory=dict)
    result: dict[str, Any] | None = None

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(x) for x in (self.workdir / "metrics.jsonl").read_text().splitlines()]

    def timeless(self) -> list[dict[str, Any]]:
        """The lines without what depends on the machine's speed."""
        timed = {"seconds", "train/tokens_per_sec"}
        return [{k: v for k, v in line.items() if k not in timed} for line in self.lines()]

    def assert_equal(self, other: "Record") -> None:
        """All states and batches of this run are bit for bit those of the other."""
        for ours, theirs in ((self.states, other.states), (self.batches, other.batches)):
            for k, found in ours.items():
                jax.tree.map(np.testing.assert_array_equal, found, theirs[k])


class Lab:
    """Runs trainings in this process; equal programs are compiled once."""

    def __init__(self, corpus: pathlib.Path, cache_dir: pathlib.Path, patch: pytest.MonkeyPatch):
        self._arguments = f"shape=2x8x1,corpus=wikitext:{corpus}"
        self._fields = fields(cache_dir)
        self._compiled: dict[Any, Any] = {}
        self._opened: list[Any] = []
        self._key: Any = None
        for name in ("compile_blocks", "compile_evaluation"):
            patch.setattr(step, name, self._remembering(getattr(step, name), name))
        patch.setattr(state, "create", self._creating(state.create))
        patch.setattr(checkpoint, "Checkpoints", self._noting(checkpoint.Checkpoints))
        patch.setattr(metrics, "Writer", self._noting(metrics.Writer))
        # What takes long and is not looked at here, or only once.
        patch.setattr(plots, "draw_curves", self._once(plots.draw_curves))

    def _once(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        calls = iter([draw])
        return lambda *args: next(calls, lambda *_: None)(*args)

    def _noting(self, kind: Any) -> Callable[..., Any]:
        def make(*args: Any) -> Any:
            self._opened.append(kind(*args))
            return self._opened[-1]

        return make

    def _remembering(self, compile_step: Callable[..., Any], name: str) -> Callable[..., Any]:
        def compile_once(*args: Any) -> Any:
            if name == "compile_blocks":
                state, *given = args[0][4:]
            else:
                args = (*args[:-1], list(args[-1]))
                state, *given = args[3:]
            num_params = sum(leaf.size for leaf in jax.tree.leaves(state))
            key = name, self._key, num_params, self._digest(name, given)
            if key not in self._compiled:
                self._compiled[key] = compile_step(*args)
            return self._compiled[key]

        return compile_once

    def _digest(self, name: str, given: Sequence[Any]) -> str:
        """Of a training program the shapes, of a validation the examples themselves."""
        if name == "compile_blocks":
            shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), given[:2])
            return f"{shapes} {given[2:]}"
        leaves = [np.asarray(x) for x in jax.tree.leaves(given[0])]
        return str([(x.shape, zlib.crc32(np.ascontiguousarray(x))) for x in leaves])

    def _creating(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def create_once(*args: Any, **kwargs: Any) -> Any:
            key = "create", self._key, kwargs["seed"]
            if key not in self._compiled:
                self._compiled[key] = create(*args, **kwargs)
            fresh, placed = self._compiled[key]
            return jax.tree.map(jnp.copy, fresh), placed

        return create_once

    def config(self, arguments: str = f"system=roberta,steps={STEPS}", **more: Any) -> Any:
        values = tiny.values(f"{self._arguments},{arguments}", **(self._fields | more))
        return config_lib.resolve(values)

    def run(
        self,
        workdir: pathlib.Path,
        config: config_lib.Config | None = None,
        *,
        before: Callable[[int], None] = lambda step: None,
        blocks: bool = False,
    ) -> Record:
        """Trains until it ends or `before(step)` raises Killed.

        With `blocks` nothing looks on at each step, so that steps go in blocks.
        """
        config, record = config or self.config(), Record(workdir)

        @contextlib.contextmanager
        def watched() -> Iterator[Any]:
            with train.pretraining(config, workdir) as training:
                if not (blocks or training.over):
                    training.most_steps, training.blocks_ahead = 1, 0
                    watch(training, before, record)
                yield training
                if record.states:
                    note_best(training, record)

        with self._trained(config):
            record.result = train.train(watched())
        return record

    def killed(
        self, workdir: pathlib.Path, config: config_lib.Config | None = None, *, at: int
    ) -> tuple[Record, Record]:
        """A run that is killed before a step, and its continuation."""
        return self.run(workdir, config, before=kill_at(at)), self.run(workdir, config)

    @contextlib.contextmanager
    def _trained(self, config: config_lib.Config) -> Iterator[None]:
        """Remembers programs of equal models; ends quietly where a hook raises Killed."""
        # What a compiled step depends on; the optimizer's rate and the budget are not in it.
        self._key = (config.system, config.objective, config.model, config.machine.num_microbatches)
        self._key += (config.machine.remat, config.tokenizer, config.mask_rate, config.mask_copies)
        options = config.system_options, config.objective_options, config.format_options
        self._key += (config.frozen, str(options), str(config.optim.without_rate))
        try:
            yield
        except Killed:
            pass
        finally:
            while self._opened:  # threads and files outlive the run, as they could not in a kill
                with contextlib.suppress(ValueError):  # closed already
                    self._opened.pop().close()


def watch(training: Any, before: Callable[[int], None], record: Record) -> None:
    """Calls `before` before each step; records its batch and state, and the best loss."""
    next_program = training.next_program

    def watched() -> Any:
        note_best(training, record)
        found = next_program()
        if found is None:
            return None
        blocks, arrays = found

        def take(state: Any, arrays: Any, rows: Any, rates: Any, alive: Any) -> Any:
            before(step := training.step - 1)
            whole = {k: np.stack([v] * blocks.size) for k, v in rows[0].items()}
            placed = sharding.rows_sharding(blocks.mesh, blocks.batch_size)
            batch = blocks.read(arrays, sharding.put(whole, placed, blocks.batch_size))
            record.batches[step] = {k: np.array(v[0]) for k, v in batch.items()}
            done = blocks(state, arrays, rows, rates, alive)
            record.states[step + 1] = jax.device_get(done[0])
            return done

        take.size = blocks.size
        return take, arrays

    training.next_program = watched


def note_best(training: Any, record: Record) -> None:
    if training.step in record.states:
        record.best[training.step] = training.progress.best


def kill_at(k: int) -> Callable[[int], None]:
    def before(step: int) -> None:
        if step == k:
            raise Killed

    return before
