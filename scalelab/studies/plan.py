"""The plan of a study: what every run will take on this machine, before anything starts.

Times three steps of each distinct net, batch size and length, and one fine-tuning step of each
distinct net, and adds up. Compiled programs stay in the cache for the runs.
"""

import functools
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from scalelab.config import durations
from scalelab.helpers.files import write_json
from scalelab.helpers.progress import format_secs
from scalelab.lab import tables
from scalelab.runs import environment
from scalelab.studies import expand, finetunings
from scalelab.studies.expand import PlannedRun
from scalelab.studies.spec import StudySpec

if TYPE_CHECKING:
    from scalelab.data import Data
    from scalelab.resources.blueprint import Blueprint, StepTime
    from scalelab.tasks.task import Splits

T = TypeVar("T")
HEADER = ("run", "N", "parameters", "steps", "tokens", "FLOPs", "pre-train", "fine-tune", "memory")
WORD_PIECES, FRAME_TOKENS = 1.35, 3  # tokens of a word, and special ones, of a task's text


def make(spec: StudySpec, workdir: pathlib.Path, command: str, num_workers: int) -> str:
    """Plans a study, keeps the plan in WORKDIR/plans, and formats it.

    This process takes the cores that one of `num_workers` processes will have.
    """
    environment.bind_to_cores(0, num_workers)
    planned = expand.expand_runs(spec, workdir, foreseen=True)
    known = expand.expand_runs(spec, workdir)
    finetunings.prepare(spec.finetune.data, planned[0].config, workdir)
    tasks = [
        measure_task(finetunings.load(name, spec.finetune.data, workdir), spec, name)
        for name in spec.finetune.tasks
    ]
    expand.write(spec, known, workdir, command)
    machine = planned[0].config.machine
    environment.configure_jax(machine.compile_cache_dir, planned[0].config.net.dtype)
    names, shares = {run.name for run in known}, finetune_shares(spec, planned)
    clock = Clock(tasks)
    rows = [
        expect(spec, run, clock, shares[run.stage]) | {"foreseen": run.name not in names}
        for run in planned
    ]
    (workdir / "plans").mkdir(exist_ok=True)
    write_json(workdir / "plans" / f"{spec.name}.json", {"workers": num_workers, "runs": rows})
    return "\n".join([describe(rows, num_workers), *describe_claims(spec, planned)])


def describe_claims(spec: StudySpec, planned: Sequence[PlannedRun]) -> list[str]:
    """Returns a line for each claim about losses of different things, which stays undecided."""
    from scalelab.lab.compare import claim_lines, comparability
    from scalelab.lab.show.notes import LOSSES

    rows = list({(run.system, run.shape, run.variant): run for run in planned}.values())
    measured = (*spec.finetune.tasks, *spec.yardsticks)
    found = []
    for stated in spec.claims:
        claim = claim_lines.parse(stated, {row.system for row in rows}, spec.variants, measured)
        pairs = claim.pair(rows) if claim.score in ("loss", "bits_per_byte") else ()
        configs = [[comparability.science(run.config) for run in pair] for pair in pairs]
        fields = {x for a, b in configs for x in comparability.loss_apart(a, b, claim.score)}
        if fields:
            what = LOSSES.format(", ".join(sorted(fields)))
            found.append(f"{claim.text} on {claim.score} will stay undecided. {what}")
    return found


class TaskSize(NamedTuple):
    """The amount of computation of a task's fine-tuning."""

    batch_size: int
    length: float  # mean tokens of an example
    steps: float  # of training
    evaluated: float  # examples that all evaluations score


def measure_task(splits: "Splits", spec: StudySpec, name: str) -> TaskSize:
    """Measures a task by its records and the study's recipe."""
    values = finetunings.config_values(spec.finetune, name)
    columns = (column[:500] for column in splits.train.texts)
    words = statistics.mean(len(" ".join(texts).split()) for texts in zip(*columns, strict=True))
    num_train = min(len(splits.train), values["max_train_examples"] or len(splits.train))
    num_dev = sum(len(records) for records in splits.dev.values() if records is not None)
    return TaskSize(
        values["batch_size"],
        min(words * WORD_PIECES + FRAME_TOKENS, values["max_len"]),
        values["epochs"] * num_train / values["batch_size"],
        math.ceil(values["epochs"] / values["eval_every_epochs"]) * num_dev,
    )


class Clock:
    """Times each distinct step of a study on some tasks, and loads its data, each once."""

    def __init__(self, tasks: Sequence[TaskSize]) -> None:
        self.tasks, self.process_bytes = tasks, environment.peak_memory_bytes()
        self._known: dict[Hashable, Any] = {}

    def _once(self, key: Hashable, make: Callable[[], T], note: str = "") -> T:
        if key not in self._known:
            if note:
                print(f"timing steps: {note}", file=sys.stderr, flush=True)
            self._known[key] = make()
        return self._known[key]

    def draw(self, run: PlannedRun) -> "Blueprint":
        """Returns a run's net and batches in the abstract."""
        from scalelab.resources import blueprint

        return self._once(net_key(run), lambda: blueprint.draw(run.config))

    def data(self, run: PlannedRun) -> "Data":
        """Returns a run's prepared data, which all runs with its texts and lengths share."""
        from scalelab import systems
        from scalelab.data import load_data

        c = run.config
        key = (c.data, c.tokenizer, c.short, c.long, c.system, str(c.format_options))
        return self._once(key, lambda: load_data(c, systems.load(run.system)))

    def pretraining(self, run: PlannedRun) -> list["StepTime"]:
        """Returns the time of a step of each phase of a run."""
        from scalelab import sharding
        from scalelab.resources import blueprint

        found, plan, machine = [], self.draw(run), run.config.machine
        mesh = sharding.make_mesh(
            machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel
        )
        for phase in plan.phases:
            size = phase.length, phase.batch_size
            time_steps = functools.partial(blueprint.time_steps, plan, *size, mesh)
            note = f"{run.system} {run.shape}, {phase.batch_size} x {phase.length}"
            found.append(self._once((net_key(run), *size), time_steps, note))
        return found

    def finetuning(self, run: PlannedRun) -> float:
        """Returns seconds per token of a fine-tuning step of a run's net, timed at one batch."""
        size = max(task.batch_size for task in self.tasks)
        length = 8 * math.ceil(max(task.length for task in self.tasks) / 8)
        length = min(length, run.config.net.max_len)
        return self._once(
            (net_key(run), "fine-tuning"),
            lambda: time_finetuning(self.draw(run), size, length) / (size * length),
            f"{run.system} {run.shape}, fine-tuning, {size} x {length}",
        )


def net_key(run: PlannedRun) -> Hashable:
    """Returns the fields that decide the programs of a run."""
    config = run.config
    phases = tuple((phase.batch_size, phase.max_len) for phase in config.phases)
    options = str((config.system_options, config.objective_options, config.format_options))
    form = config.data.format
    return run.system, config.net, config.objective, options, config.tokenizer, form, phases


def time_finetuning(plan: "Blueprint", batch_size: int, length: int) -> float:
    """Returns the seconds of one fine-tuning step: forward, backward and AdamW of a classifier."""
    import jax
    import optax
    from flax import linen as nn

    from scalelab.nets.classifier import Classifier
    from scalelab.nn.heads import OneLayerHead

    net = Classifier(
        plan.net, OneLayerHead(2, 0.1, nn.initializers.zeros), plan.system.ADAPTATION.reads
    )
    batch, tx = plan.random_batch(length, batch_size), optax.adamw(1e-5)

    def score(net: Classifier) -> jax.Array:
        hidden, _ = net.body(batch, train=True)
        return net.classify(hidden, batch, train=True)

    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    shapes = jax.eval_shape(lambda: net.init(keys, method=score)["params"])
    params = jax.tree.map(lambda x: np.full(x.shape, 0.01, x.dtype), nn.unbox(shapes))

    def loss(params: optax.Params, key: jax.Array) -> jax.Array:
        scores = net.apply({"params": params}, rngs={"dropout": key}, method=score)
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch["lengths"] * 0).mean()

    @jax.jit
    def step(
        params: optax.Params, opt_state: optax.OptState, key: jax.Array
    ) -> tuple[optax.Params, optax.OptState]:
        updates, opt_state = tx.update(jax.grad(loss)(params, key), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    state, secs = (params, tx.init(params)), 0.0
    for _ in range(2):  # the first compiles
        begun = time.perf_counter()
        state = jax.block_until_ready(step(*state, jax.random.key(0)))
        secs = time.perf_counter() - begun
    return secs


def expect(spec: StudySpec, run: PlannedRun, clock: Clock, share: float) -> dict[str, Any]:
    """Adds up one pre-training and its fine-tunings; `share` of its stage is fine-tuned."""
    from scalelab.resources import flops

    plan, steps, data = clock.draw(run), clock.pretraining(run), clock.data(run)
    tokens = [
        phase.batch_size * own.train.meta["num_tokens"] / len(own.train)
        for phase, own in zip(plan.phases, data.phases, strict=False)
    ]
    costs = {"tokens": tokens, "flops": [phase.forward.train for phase in plan.phases]}
    found = durations.make_plan(run.config, [p.steps_per_epoch for p in data.phases], costs)
    per_step = [step.secs for step in steps] if found.clock == "secs" else found.costs
    counts = [
        math.ceil((end - begin) / cost)
        for begin, end, cost in zip([0.0, *found.ends], found.ends, per_step, strict=False)
    ]

    def total(each: Sequence[float]) -> float:
        return sum(n * amount for n, amount in zip(counts, each, strict=True))

    finetune = 0.0
    if share:
        # Scoring an example takes a third of training on it.
        positions = sum(t.length * (t.batch_size * t.steps + t.evaluated / 3) for t in clock.tasks)
        finetune = spec.finetune.seeds * positions * clock.finetuning(run)
        finetune *= 2 if spec.finetune.scratch and run.seed == 0 else 1
    kept = run.config.machine.compile_cache_dir is not None and run.seed > 0
    return {
        "name": run.name,
        "stage": run.stage,
        "n_model": run.describe().n_model,
        "num_params": flops.count_parameters(plan.state.params),
        "steps": sum(counts),
        "tokens": total(tokens),
        "flops": total(costs["flops"]),
        "secs": total([step.secs for step in steps]),
        # Of compiling; the programs of an earlier seed are kept.
        "start_secs": 0.0 if kept else sum(step.compile_secs for step in steps),
        "finetune_secs": finetune,
        "finetune_share": share,
        # This process's libraries, and the state, batch and buffers of a step.
        "peak_bytes": clock.process_bytes + max(step.num_bytes for step in steps),
    }


def finetune_shares(spec: StudySpec, planned: Sequence[PlannedRun]) -> dict[str, float]:
    """Returns the share of each stage's runs that is fine-tuned: of "best:k", k of its points."""
    shares = {}
    for name, stage in spec.stages.items():
        points = {(r.system, r.shape, r.variant) for r in planned if r.stage == name}
        count = {"all": len(points), "none": 0}.get(stage.finetune)
        count = int(stage.finetune.removeprefix("best:")) if count is None else count
        shares[name] = min(1.0, count / max(1, len(points))) if spec.finetune.tasks else 0.0
    return shares


def describe(rows: Sequence[dict[str, Any]], num_workers: int) -> str:
    """Formats the plan as a table with its total and the meaning of its marks."""
    cells = [
        [
            e["name"] + " ~" * e["foreseen"],
            f"{e['n_model']:,}", f"{e['num_params']:,}", f"{e['steps']:,}",
            f"{e['tokens']:,.0f}", f"{e['flops']:.2g}",
            format_secs(e["secs"] + e["start_secs"]),
            format_secs(e["finetune_share"] * e["finetune_secs"])
            + " *" * (0 < e["finetune_share"] < 1),
            f"{e['peak_bytes'] / 2**30:.2f} GiB",
        ]
        for e in rows
    ]  # fmt: skip
    total = sum(
        e["start_secs"] + e["secs"] + e["finetune_share"] * e["finetune_secs"] for e in rows
    )
    marks = {
        " ~": "~ the shape is chosen by the stage before; planned with another shape of its size",
        " *": "* the stage fine-tunes only its best:k; the mean over the stage's runs",
    }
    gpus = " at best, as they share the GPU" * (num_workers > 1 and environment.num_gpus() > 0)
    used = [text for mark, text in marks.items() if any(mark in cell for r in cells for cell in r)]
    return tables.plain(HEADER, cells) + "\n".join([
        f"{len(rows)} runs, {sum(e['flops'] for e in rows):.2g} FLOPs of pre-training;"
        f" {format_secs(total)} of one process, {format_secs(total / num_workers)} with"
        f" {num_workers}{gpus}. Seconds come from steps timed here, with compiling and without the"
        " start of processes. Fine-tuning is a rougher estimate.",
        *used,
    ])  # fmt: skip
