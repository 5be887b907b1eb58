"""Opens a run for training: its devices, its data, and its state, restored or made."""

import dataclasses
import math
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax.typing import ArrayPytree
from jax.sharding import Mesh

from scalelab import data as data_lib
from scalelab import sharding, state, systems
from scalelab.config.durations import make_plan
from scalelab.config.pretraining import Config
from scalelab.data import tokenizers
from scalelab.optim import adamw
from scalelab.records import run_files, run_folder
from scalelab.records.metrics import Clocks, check_tracker
from scalelab.resources import flops, host
from scalelab.state import TrainState
from scalelab.training import checkpoint
from scalelab.training.beginning import Start
from scalelab.training.pretrained import Pretrained, check_tokenizer, check_tokenizers
from scalelab.training.pretraining import BeforeStep, Pretraining


@dataclasses.dataclass
class Run:
    """The part of a run that changes in training; a checkpoint holds all of it."""

    state: ArrayPytree  # the TrainState, on the devices
    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    phase: int = 0  # index of the phase in progress
    phase_start: int = 0  # the step at which that phase began
    best: float = math.inf  # lowest validation loss of the phase in progress
    # The last validation of each phase, by its length in tokens.
    evals: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    data: str = ""  # fingerprint of the training examples
    # (sum, weight) of each metric since the last logged line.
    unlogged: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    # Names of the parameters that the run of --init did not have.
    initialised: list[str] = dataclasses.field(default_factory=list)
    num_lines: int | None = 0  # lines of metrics.jsonl; None in checkpoints of older versions

    def meta(self) -> dict[str, Any]:
        """Returns everything but the state, as plain JSON."""
        values = {name: x for name, x in vars(self).items() if name != "state"}
        return values | {"clocks": dataclasses.asdict(self.clocks), "best": repr(self.best)}

    @classmethod
    def from_meta(cls, state: ArrayPytree, meta: dict[str, Any]) -> "Run":
        """Builds the run from its state and what `meta` returned."""
        names = {f.name for f in dataclasses.fields(cls)} & meta.keys()
        values = {"num_lines": None} | {name: meta[name] for name in names}
        return cls(
            state, **(values | {"clocks": Clocks(**meta["clocks"]), "best": float(meta["best"])})
        )


class Finished:
    """A run that has its result already: no step is left."""

    over, blocks_ahead, steps_per_sec, settle = True, 0, 0.0, None

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result


def set_up(config: Config, nets: Mapping[str, Pretrained]) -> Mesh:
    """Configures JAX, arranges the devices, and checks that the config fits them.

    `nets` are the frozen nets by their names.

    Raises:
      ValueError: the config does not suit the devices, or needs more memory than they have.
    """
    machine = config.machine
    check_tracker(machine.tracker)
    host.configure_jax(machine.compile_cache_dir, config.net.dtype)
    mesh = sharding.make_mesh(machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel)
    batch_sizes = [phase.batch_size for phase in config.phases]
    sharding.check_batches(mesh, batch_sizes, machine.num_microbatches)
    model = state.make_model(config, frozen=nets)
    state.check_memory(model, config.short.max_len, mesh, host.available())
    state.check_phases(model, config)
    adamw.get_schedule(config.optim.schedule)
    return mesh


def open_run(
    config: Config,
    start: Start | None,
    nets: Mapping[str, Pretrained],
    workdir: pathlib.Path,
    mesh: Mesh,
    say: Callable[[str], object],
    before_step: BeforeStep | None = None,
) -> Pretraining:
    """Loads a run's data, and restores or makes its state.

    Args:
      config: of the run.
      start: the run whose parameters it begins with; None: from the seed.
      nets: the frozen nets by their names.
      workdir: its folder, locked.
      mesh: the devices.
      say: prints what the run is made of.
      before_step: called with (step, batch) before each step.
    """
    system, max_len = systems.load(config.system), config.short.max_len
    tokenizer_dir, is_chief = start and start.tokenizer_dir, jax.process_index() == 0
    data = data_lib.load_data(config, system, tokenizer_dir=tokenizer_dir, progress=is_chief)
    check_tokenizers(nets, data.tokenizer)
    model = state.make_model(config, data.tokenizer.special_ids, nets, data.tokenizer.joins)
    fresh, placed = state.create(
        model.net, model.terms, model.tx,
        max_len=max_len, batch_size=config.short.batch_size, frozen=model.frozen,
        seed=config.seed, mesh=mesh,
    )  # fmt: skip
    if start is not None:
        fresh = fresh.replace(params=start.put(fresh.params, placed.params))
    costs = flops.count_phases(
        fresh.params, model.net, model.terms, config, fresh.carried, fresh.frozen
    )
    tokens = [phase.step_tokens for phase in data.phases]
    step_costs = {"tokens": tokens, "flops": [cost.train for cost in costs]}
    plan = make_plan(config, [phase.steps_per_epoch for phase in data.phases], step_costs)
    checkpoints = checkpoint.Checkpoints(workdir / "checkpoints", config.machine.num_checkpoints)
    run = _restore(checkpoints, fresh, start, data.fingerprint, workdir)
    training = Pretraining(
        workdir, config, data, model, nets, mesh, placed, costs, plan, run, checkpoints, say,
        before_step,
    )  # fmt: skip
    if is_chief:
        ours = workdir / "tokenizer"
        theirs = ours if checkpoints.steps() and ours.is_dir() else data.tokenizer_dir
        run_folder.write_description(workdir, config, tokenizers.digest(theirs))
        if theirs.resolve() != ours.resolve():
            shutil.copytree(theirs, ours, dirs_exist_ok=True)
    facts = {
        "parameters": f"{flops.count_parameters(run.state.params):,}",
        "budget": f"{plan.total:,.0f} {plan.clock}, warm-up {plan.warmup:,.0f}",
        "learning rate": _describe_rate(config, system),
        "validation": f"every {config.eval.every_steps} steps, {config.eval.num_examples} examples",
        **data.facts,
    }
    lines = (f"\n  {name:<18} {value}" for name, value in facts.items())
    say(f"{training.name} in {workdir}{''.join(lines)}")
    most = config.machine.steps_per_dispatch
    if plan.clock == "steps" and most is not None and most > plan.total:
        say(f"note: config.machine.steps_per_dispatch = {most} exceeds all {plan.total:g} steps")
    if start is not None:
        say(start.describe())
    if run.clocks.steps:
        say(f"continuing from step {run.clocks.steps}")
    else:
        training.save()
    return training


def _describe_rate(config: Config, system: systems.System) -> str:
    """Returns the learning rate, and the protocol's if it is another."""
    declared = {departure.field: departure.value for departure in system.DEPARTURES}
    rate = config.optim.learning_rate
    protocol = declared.get("optim.learning_rate", Config().optim.learning_rate)
    return f"{rate:g}" + f" (protocol: {protocol:g})" * (rate != protocol)


def _restore(
    checkpoints: checkpoint.Checkpoints, fresh: TrainState, start: Start | None, fingerprint: str,
    workdir: pathlib.Path,
) -> Run:  # fmt: skip
    """Returns the run of the newest checkpoint, or one that begins with the fresh state.

    Raises:
      ValueError: no checkpoint is sound, the run's tokenizer has changed, or it was trained on
        other examples.
    """
    frozen = fresh.frozen  # checkpoints leave these out
    restored = checkpoints.restore(fresh.replace(frozen={}))
    if restored is not None:
        if (workdir / "tokenizer").is_dir():
            check_tokenizer(run_files.read_run(workdir, metrics=False))
        run = Run.from_meta(restored[0].replace(frozen=frozen), restored[1])
    elif start is not None and start.opened is None:
        raise ValueError(
            f"no checkpoint in {workdir} is sound, and {start.path}, whose parameters it began"
            " with, was not read: delete the folder and start again with --init"
        )
    else:
        run = Run(fresh, data=fingerprint, initialised=list(start.fresh if start else ()))
    if run.data != fingerprint:
        raise ValueError(
            f"the run in {workdir} was trained on other examples ({run.data}) than its config gives"
            f" now ({fingerprint}): the corpus or the code of its format has changed; restore the"
            " corpus, or start in a new --workdir"
        )
    return run
