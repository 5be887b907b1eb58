"""Pre-trains one system: python -m scalelab.train --config=FILE.py:ARGUMENTS --workdir=DIR.

The run folder holds everything the run leaves. Start the same command again to continue a stopped
run; a finished one says so and does nothing. Restored is, in this order: the newest sound
checkpoint of the folder, else a fresh initialisation from the seed.
"""

import contextlib
import importlib.util
import math
import pathlib
import shutil
import time
from collections.abc import Callable, Iterable
from typing import Any

from absl import flags

from scalelab import cli, clocks, departures, environment
from scalelab.config import Config, science

flags.adopt_module_key_flags(cli)

UNKNOWN = 2**31  # steps of a phase that ends by another clock


def train(
    config: Config,
    workdir: pathlib.Path,
    *,
    before_step: Callable[[int, dict[str, Any]], None] | None = None,
    every: Iterable[tuple[int, Callable[[Any], None]]] = (),
) -> dict[str, Any]:
    """Runs, or continues, one pre-training.

    Args:
      config: the resolved config.
      workdir: the run folder.
      before_step: called on the host with (step, batch) before each step.
      every: (n, fn) pairs: fn(run) is called after every n-th step, and when a phase ends.

    Returns:
      The content of result.json.

    Raises:
      ValueError: config, data or folder do not allow it.
      OSError: the disk is full or a folder cannot be written.
      cli.Stopped: interrupted, or loss or gradient were not finite.
    """
    with contextlib.ExitStack() as held:
        return _train(config, workdir, held, before_step, every)


def _train(
    config: Config,
    workdir: pathlib.Path,
    held: contextlib.ExitStack,
    before_step: Callable[[int, dict[str, Any]], None] | None,
    every: Iterable[tuple[int, Callable[[Any], None]]],
) -> dict[str, Any]:
    """Does what `train` says; `held` releases the folder when it is left."""
    # Imported here, once the flags are known to be right, so that --help and typos answer at once.
    import jax
    import numpy as np

    from scalelab import build, flops, metrics, progress, run_folder, sharding, state, step, systems
    from scalelab.checkpoint import Checkpoints, Run
    from scalelab.data import load_data, pipeline
    from scalelab.data.batches import Batches, evaluation_batches
    from scalelab.lab import curves
    from scalelab.optim import schedules

    started = time.perf_counter()

    # --- Folder --------------------
    finished = run_folder.claim(workdir, config)
    if finished is not None:
        print(
            f"{workdir} is finished ({finished['steps']} steps); nothing to do:"
            f" its numbers are in {workdir}/result.json"
        )
        return finished

    # --- Devices --------------------
    machine = config.machine
    if machine.loader == "tf" and importlib.util.find_spec("tensorflow") is None:
        raise ValueError(
            "config.machine.loader = 'tf' needs TensorFlow, which is not installed;"
            " --config.machine.loader=numpy makes the same batches without it"
        )
    if machine.distributed:
        sharding.join_processes()
    environment.configure_jax(machine.compile_cache_dir, config.net.dtype)
    mesh = sharding.make_mesh(machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel)
    chief = jax.process_index() == 0
    together = jax.process_count() > 1
    if chief:
        held.enter_context(run_folder.locked(workdir))
    say = print if chief else (lambda *_: None)

    # --- System and data --------------------
    system = systems.load(config.system)
    build.check_pairing(config, system)
    batch_sizes = [config.short.batch_size]
    batch_sizes += [config.long.batch_size] if config.long.example_rate else []
    sharding.check_batches(mesh, batch_sizes, machine.num_microbatches)
    schedule = schedules.get(config.optim.schedule)
    net = build.make_net(config, system)
    data = load_data(config, system, progress=chief)
    budget = clocks.budget(config, sum(phase.steps_per_epoch for phase in data.phases))
    if together and budget.clock == "secs":
        raise ValueError("a budget in seconds needs one process: the clocks of several differ")

    # --- Objectives, optimizer, state --------------------
    objectives = build.make_objectives(config, data.tokenizer.special_ids)
    token_losses = [f"{o.name}_loss" for o in objectives if o.num_predicted(config.short.max_len)]
    tx = build.make_optimizer(config)
    fresh, placed = state.create(
        net, objectives, tx, max_len=config.short.max_len, seed=config.seed, mesh=mesh
    )
    costs = [
        build.step_flops(config, system, objectives, fresh.params, p.batch_size, p.max_len)
        for p in data.phases
    ]
    steps_per_epoch = [phase.steps_per_epoch for phase in data.phases]
    step_costs = build.costs_on_clock(budget.clock, data.phases, costs)
    ends = clocks.phase_ends(config, budget, steps_per_epoch, step_costs)

    # --- Restore --------------------
    checkpoints = Checkpoints(workdir / "checkpoints", machine.num_checkpoints)
    restored = checkpoints.restore(fresh)
    fingerprints = [phase.train.fingerprint() for phase in data.phases]
    fingerprint = "-".join([data.corpus_hash[:12], *fingerprints])
    run = Run(fresh, data=fingerprint) if restored is None else Run.from_meta(*restored)
    if run.data != fingerprint:
        raise ValueError(
            f"the run in {workdir} was trained on other examples ({run.data}) than its config gives"
            f" now ({fingerprint}): the corpus or the code of its format has changed; go on with"
            " what it had, or start in a new --workdir"
        )
    writer = metrics.Writer(workdir, run.clocks.steps) if chief else None
    if chief:
        run_folder.describe(workdir, config)
        shutil.copytree(data.tokenizer_dir, workdir / "tokenizer", dirs_exist_ok=True)
    name = build.name(config)
    num_params = flops.count_parameters(run.state.params)
    facts = build.describe(config, data, costs, num_params, budget, ends)
    say(f"{name} in {workdir}\n" + "\n".join(f"  {k:<18} {v}" for k, v in facts.items()))
    if restored is not None:
        say(f"continuing from step {run.clocks.steps}")
    peak = flops.measure_peak(config.net.dtype)
    eval_key = state.named_key(jax.random.key(config.seed), "eval")
    timers = {
        "setup_secs": time.perf_counter() - started,
        "compile_secs": 0.0,
        "eval_secs": 0.0,
        "save_secs": 0.0,
    }

    # --- What happens between steps --------------------
    window = metrics.Window(run.clocks, run.unlogged)
    now = run.clocks.at(budget.clock)
    line, eta = progress.Progress(), progress.Eta()
    train_step = step.make_train_step(net, objectives, tx, machine.num_microbatches)
    eval_step = step.make_eval_step(net, objectives)

    def compile_phase(batches: Batches, phase: Any) -> tuple[Any, Any]:
        with metrics.timed(timers, "compile_secs"):
            batch = sharding.put_batch(batches(0), mesh, phase.batch_size)
            return (
                step.compile_train(train_step, mesh, placed, run.state, batch),
                step.compile_eval(
                    eval_step, mesh, placed.params, run.state.params, batch, eval_key
                ),
            )

    def log(run: Run) -> None:
        means = window.take()
        if writer is not None and means:
            rate = {
                "train/learning_rate": float(learning_rate),
                "train/tokens_per_sec": window.tokens_per_sec,
            }
            writer.write(run.clocks, {f"train/{k}": v for k, v in means.items()} | rate)

    def evaluate(run: Run) -> None:
        nonlocal peak
        window.settle()
        # Whoever shared the machine at the start may be gone.
        peak = max(peak, flops.measure_peak(config.net.dtype))
        phase = data.phases[run.phase]
        with metrics.timed(timers, "eval_secs"):
            num_batches = math.ceil(config.eval.num_examples / phase.batch_size)
            stream = evaluation_batches(phase.valid, phase.batch_size, phase.max_len, num_batches)
            pairs = []
            for k, batch in enumerate(stream):
                ours = {
                    name: v[sharding.host_rows(mesh, phase.batch_size)] for name, v in batch.items()
                }
                key = jax.random.fold_in(eval_key, k)
                pairs.append(
                    run_eval(
                        run.state.params, sharding.put_batch(ours, mesh, phase.batch_size), key
                    )
                )
            means = metrics.summarise_eval(metrics.sum_pairs(jax.device_get(pairs)), token_losses)
        run.best = min(run.best, means["loss"])
        evaluation = means | {"step": run.clocks.steps, "best_loss": run.best}
        run.evals[str(phase.max_len)] = evaluation
        if writer is not None:
            writer.write(
                run.clocks,
                {f"eval/{k}": v for k, v in means.items()} | {"eval/max_len": phase.max_len},
            )
        say(f"\nstep {run.clocks.steps}: validation at length {phase.max_len}: "
            + ", ".join(f"{k} {v:.4g}" for k, v in means.items()))  # fmt: skip
        save(
            run, rank=means["loss"] - 1e6 * run.phase
        )  # lengths do not compare: a later phase is better
        window.restart()

    def save(run: Run, rank: float | None = None) -> None:
        window.settle()
        with metrics.timed(timers, "save_secs"):
            checkpoints.save(run.state, run.meta(), rank)
        window.restart()

    def show(run: Run, final: bool = False) -> None:
        if not final and not line.due():
            return
        window.settle()
        flop_share = window.steps_per_sec * costs[run.phase].train / (peak * jax.device_count())
        line.show(
            f"{name} | step {run.clocks.steps} ({now / budget.total:.0%}) | loss {window.loss:.4f}"
            f" | {window.tokens_per_sec:,.0f} tokens/s | MFU {flop_share:.0%}"
            f" | ETA {eta.text(now / budget.total)}",
            final=final,
        )

    hooks = [
        (machine.log_every_steps, log),
        (config.eval.every_steps, evaluate),
        (machine.checkpoint_every_steps, save),
        *every,
    ]

    # --- Loop --------------------
    learning_rate = np.float32(0)
    stopped = False
    if run.clocks.steps == 0:
        save(run)
    with cli.Interrupt() as interrupt, cli.stopping_on_non_finite(checkpoints, workdir):
        while now < budget.total and not stopped:
            if now >= ends[run.phase]:  # here, because a run may also continue from that point
                run.phase, run.phase_start, run.best = run.phase + 1, run.clocks.steps, math.inf
                continue
            phase = data.phases[run.phase]
            rows = sharding.host_rows(mesh, phase.batch_size)
            batches = Batches(phase.train, phase.batch_size, phase.max_len, config.seed, rows)
            run_train, run_eval = compile_phase(batches, phase)
            ready = time.perf_counter() - started
            say(
                f"phase {run.phase + 1}: length {phase.max_len}, batch {phase.batch_size};"
                f" compiled, {ready:.1f} s after start"
            )
            first = run.clocks.steps - run.phase_start
            last = int(ends[run.phase]) - run.phase_start if budget.clock == "steps" else UNKNOWN
            stream = pipeline.iterate(batches, first, last, machine.loader, machine.prefetch)
            for k, batch in enumerate(stream):
                if k == 0:
                    window.restart()  # what came before was start-up of the pipeline
                    eta.start(now / budget.total)
                if before_step is not None:
                    before_step(run.clocks.steps, batch)
                factor = schedule(now, budget.warmup, budget.total)
                learning_rate = np.float32(config.optim.learning_rate * factor)
                run.state, pairs = run_train(
                    run.state, sharding.put_batch(batch, mesh, phase.batch_size), learning_rate
                )
                run.clocks.tokens += batches.num_tokens(run.clocks.steps - run.phase_start)
                run.clocks.flops += costs[run.phase].train
                run.clocks.steps += 1
                window.add(run.clocks.steps, pairs)
                now = window.secs() if budget.clock == "secs" else run.clocks.at(budget.clock)
                phase_over = now >= ends[run.phase]
                for n, hook in hooks:
                    if run.clocks.steps % n == 0 or phase_over:
                        hook(run)
                show(run)
                # Several processes must stop after the same step, so they ask each other, rarely.
                if not together or run.clocks.steps % machine.log_every_steps == 0:
                    stopped = sharding.any_process(interrupt.received is not None)
                if stopped or phase_over:
                    break
        save(run)
        show(run, final=True)

    # --- End --------------------
    checkpoints.close()
    if writer is not None:
        writer.close()
        curves.draw(workdir, name)
    if stopped and now < budget.total:
        raise cli.Stopped(
            f"stopped by {interrupt.received or 'another process'} after step {run.clocks.steps},"
            f" which is saved in {workdir};"
            " start the same command again to continue",
            cli.PREEMPTED if interrupt.received == "SIGTERM" else cli.FAILED,
        )
    result = run_folder.result(
        config,
        run.clocks,
        run.evals,
        {"params": num_params, "data_hash": data.corpus_hash, "unigram_nats": data.unigram_nats}
        | {"departures": departures.held(system.DEPARTURES, science(config))}
        | timers,
    )
    if chief:
        metrics.write_json(workdir / "result.json", result)
    say(
        f"finished {name}: {run.clocks.steps} steps, {run.clocks.tokens:,} tokens in"
        f" {run.clocks.secs:.0f} s of training\n"
        f"  look at {workdir}/curves.png, {workdir}/metrics.jsonl, {workdir}/result.json"
    )
    return result


def main(argv: list[str]) -> None:
    """Reads the flags and trains."""
    del argv
    environment.keep_freed_memory()
    train(cli.read_config(), pathlib.Path(cli.required(cli.WORKDIR.value, "workdir")))


if __name__ == "__main__":
    cli.run(main)
