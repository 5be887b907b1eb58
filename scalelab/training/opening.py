"""Opens a pre-training: devices, data, and state, restored or made; and writes its result."""

import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from scalelab import objectives, sharding, state, systems
from scalelab.config.durations import make_plan
from scalelab.config.fields import make_options
from scalelab.config.pretraining import Config, science
from scalelab.data import loading, tokenizers
from scalelab.records import baselines, json_files, metrics, run_files, run_folder
from scalelab.records.metrics import Progress
from scalelab.resources import flops, host
from scalelab.state import TrainState
from scalelab.training import checkpoint
from scalelab.training.beginning import Start
from scalelab.training.pretrained import Pretrained, check_tokenizer, check_tokenizers
from scalelab.training.pretraining import Pretraining


def set_up(config: Config, nets: Mapping[str, Pretrained]) -> Mesh:
    """Configures JAX, arranges the devices, and checks that the config fits them.

    Raises:
      ValueError: the config does not suit the devices, or needs more memory than they have.
    """
    machine = config.machine
    metrics.check_tracker(machine.tracker)
    host.configure_jax(machine.compile_cache_dir, config.model.dtype)
    mesh = sharding.make_mesh(machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel)
    batch_sizes = [phase.batch_size for phase in config.phases]
    sharding.check_batches(mesh, batch_sizes, machine.num_microbatches)
    model = state.make_model(config, frozen=nets)
    state.check_memory(model, config.short.max_len, mesh, host.available())
    state.check_phases(model, config)
    return mesh


def open_run(
    config: Config,
    start: Start | None,
    nets: Mapping[str, Pretrained],
    workdir: pathlib.Path,
    mesh: Mesh,
    say: Callable[[str], object],
) -> Pretraining:
    """Loads a run's data, and restores or makes its state.

    Args:
      config: of the run.
      start: the run whose parameters it begins with; None: from the seed.
      nets: the frozen models by their names.
      workdir: its folder, locked.
      mesh: the devices.
      say: prints what the run is made of.
    """
    system, is_chief = systems.load(config.system), jax.process_index() == 0
    tokenizer_dir = start and start.tokenizer_dir
    data = loading.load_data(config, system, tokenizer_dir=tokenizer_dir, progress=is_chief)
    check_tokenizers(nets, data.tokenizer)
    model = state.make_model(config, data.tokenizer.special_ids, nets, data.tokenizer.joins)
    fresh, placed = state.create(model, **vars(config.short), seed=config.seed, mesh=mesh)
    if start is not None:
        fresh = fresh.replace(params=start.put(fresh.params, placed.params))
    costs = flops.count_phases(
        fresh.params, model.net, model.terms, config, fresh.carried, fresh.frozen
    )
    tokens = [phase.step_tokens for phase in data.phases]
    step_costs = {"tokens": tokens, "flops": [cost.train for cost in costs]}
    plan = make_plan(config, [phase.steps_per_epoch for phase in data.phases], step_costs)
    checkpoints = checkpoint.Checkpoints(workdir / "checkpoints", config.machine.num_checkpoints)
    now, progress = _restore(checkpoints, fresh, start, data.fingerprint, workdir)
    if start is None and not now.step and (count := getattr(system, "count", None)):
        text, options = data.train, make_options(system, config.system_options)
        starts = text.sentence_starts[text.document_starts]
        found = count(text.tokens, starts, options, config.tokenizer.vocab_size)
        now = now.replace(params=jax.device_put(found, placed.params))
        say(f"counted {len(text.tokens):,} tokens")
    training = Pretraining(
        workdir, config, data, model, nets, mesh, placed, costs, plan, checkpoints, say, now,
        progress,
    )  # fmt: skip
    if is_chief:
        ours = workdir / "tokenizer"
        theirs = ours if checkpoints.steps() and ours.is_dir() else data.tokenizer_dir
        run_folder.write_description(workdir, config, tokenizers.digest(theirs))
        if theirs.resolve() != ours.resolve():
            shutil.copytree(theirs, ours, dirs_exist_ok=True)
    say(_describe(training))
    if start is not None:
        say(start.describe())
    if training.step:
        say(f"continuing from step {training.step}")
    else:
        training.save()
    return training


def _describe(training: Pretraining) -> str:
    """Returns the lines that a run prints at its start."""
    config, plan = training.config, training.plan
    declared = {own.field: own.value for own in training.model.system.DEPARTURES}
    rate = config.optim.learning_rate
    protocol = declared.get("optim.learning_rate", Config().optim.learning_rate)
    facts = {
        "parameters": f"{flops.count_parameters(training.state.params):,}",
        "budget": f"{plan.total:,.0f} {plan.clock}, warm-up {plan.warmup:,.0f}",
        "learning rate": f"{rate:g}" + f" (protocol: {protocol:g})" * (rate != protocol),
        "validation": f"every {config.eval.every_steps} steps, {config.eval.num_examples} examples",
        **training.data.facts,
    }
    lines = [f"{training.name} in {training.workdir}"]
    lines += [f"  {name:<18} {value}" for name, value in facts.items()]
    return "\n".join(lines)


def _restore(
    checkpoints: checkpoint.Checkpoints, fresh: TrainState, start: Start | None, fingerprint: str,
    workdir: pathlib.Path,
) -> tuple[TrainState, Progress]:  # fmt: skip
    """Returns state and progress of the newest checkpoint, or the fresh state and no progress.

    Raises:
      ValueError: no checkpoint is sound, the run's tokenizer has changed, or it was trained on
        other examples.
    """
    frozen = fresh.frozen  # checkpoints leave these out
    restored = checkpoints.restore(fresh.replace(frozen={}))
    if restored is not None:
        if (workdir / "tokenizer").is_dir():
            check_tokenizer(run_files.read_run(workdir, metrics=False))
        now, progress = restored[0].replace(frozen=frozen), Progress.from_json(restored[1])
    elif start is not None and start.opened is None:
        raise ValueError(
            f"no checkpoint in {workdir} is sound, and {start.path}, whose parameters it began"
            " with, was not read: delete the folder and start again with --init"
        )
    else:
        now = fresh
        progress = Progress(data=fingerprint, initialised=list(start.fresh if start else ()))
    if progress.data != fingerprint:
        raise ValueError(
            f"the run in {workdir} was trained on other examples ({progress.data}) than its config"
            f" gives now ({fingerprint}): the corpus or the code of its format has changed; restore"
            " the corpus, or start in a new --workdir"
        )
    return now, progress


def finish(training: Pretraining) -> dict[str, Any]:
    """Writes result.json at the end of a run; returns its content."""
    config, progress, data = training.config, training.progress, training.data
    system, clocks = systems.load(config.system), progress.clocks
    arrays = objectives.predicted_arrays(config.objective_weights, config.objective_options)
    unigrams = {baselines.unigram_name(array): data.unigram_nats_of(array) for array in arrays}
    last = progress.evals[max(progress.evals, key=int)]
    checks = baselines.check_baselines(
        config.objective_weights, config.objective_options,
        {**last, baselines.UNIGRAM: data.unigram_nats, **unigrams}, objectives.load_baselines(),
        with_margin=False,
    )  # fmt: skip
    most = config.eval.num_examples
    unknown, num_valid = data.tokenizer.count_unknown(data.valid.tokens), len(data.valid.tokens)
    result = run_files.RunResult(
        system=config.system,
        shape=config.model.shape,
        n_model=systems.n_model(system, config.model, config.system_options),
        seed=config.seed,
        steps=clocks.steps,
        tokens=clocks.tokens,
        flops=clocks.flops,
        seconds=clocks.secs,
        params=flops.count_parameters(training.state.params),
        init=None if config.init is None else config.machine.init,
        init_digest=config.init,
        initialised=tuple(progress.initialised),
        peak_memory_bytes=host.peak_memory_bytes(),
        remarks=(
            *[
                f"{x.objective} has learned no more than a constant predictor knows: {x.failure}"
                for x in checks
                if x.failure
            ],
            *[metrics.describe_unknown(unknown, num_valid)] * bool(unknown),
        ),
        eval=progress.evals,
        data_hash=data.corpus_hash,
        unigram_nats=data.unigram_nats,
        unigrams=unigrams,
        corpus=run_files.Corpus(data.train.num_documents, len(data.train.tokens)),
        validation=run_files.Corpus(data.valid.num_documents, num_valid, unknown),
        phases=tuple(
            run_files.PhaseData(
                p.max_len, len(p.train), p.epoch_tokens, p.padding_share, p.num_validated(most)
            )
            for p in data.phases
        ),
        departures=systems.active_departures(system.DEPARTURES, science(config)),
        **training.timers,
    )
    if jax.process_index() == 0:
        run_files.write_result(training.workdir, result)
    return json_files.dump(result)
