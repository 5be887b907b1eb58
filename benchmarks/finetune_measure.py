"""What benchmarks.finetune measures: ours beside the peer, and seeds together beside alone."""

import argparse
import collections
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import finetune_floor, finetune_peer, finetune_task, side_by_side
from scalelab.finetuning.group import Group
from scalelab.finetuning.loop import AHEAD
from scalelab.resources import flops
from scalelab.runs import environment, metrics

Clock = tuple[float, float]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Prepares the task and measures what the arguments ask for."""
    load = os.getloadavg()[0]
    environment.configure_jax(None, "float32")
    with tempfile.TemporaryDirectory() as folder:
        run = finetune_task.prepare(arguments, Path(folder))
        steps = num_steps(run, arguments.steps)
        net, opened = run.start.opened.config.net, run.start.opened
        found = {
            "task": run.task.name,
            "quick": arguments.quick,
            "invented": arguments.data is None,
            "shape": f"{net.num_heads}x{net.width}x{net.num_layers}",
            "vocab_size": opened.config.tokenizer.vocab_size,
            "tokenizer": opened.tokenizer.vocab_size,
            "batch_size": run.config.batch_size,
            "steps": steps,
            "steps_per_epoch": run.steps_per_epoch,
            "repeats": arguments.repeats,
            "device": jax.devices()[0].device_kind,
            "threads": arguments.threads,
            "load": load,
        }
        if arguments.seeds_together > 1:
            return found | together(run, steps, arguments.repeats, arguments.seeds_together)
        return found | beside_peer(run, steps, arguments.repeats, arguments.threads)


# --- Rates --------------------------------------------------------------------------------------


def clocks() -> Clock:
    """Wall time and CPU time of all threads of this process, in seconds."""
    return time.perf_counter(), time.process_time()


def rates(count: int, started: Clock) -> tuple[float, float]:
    """Examples per second and per CPU second since `started`."""
    secs, cpu_secs = (now - then for now, then in zip(clocks(), started, strict=True))
    return count / secs, count / cpu_secs


def median(found: list[tuple[float, float]]) -> dict[str, Any]:
    """Medians of what `rates` gave, and every one of them."""
    return {
        "examples_per_sec": statistics.median(wall for wall, _ in found),
        "examples_per_cpu_sec": statistics.median(cpu for _, cpu in found),
        "each": [wall for wall, _ in found],
    }


# --- Which steps --------------------------------------------------------------------------------


def num_steps(run: Any, steps: int) -> int:
    """Batches whose examples are drawn at random: whole sorted stretches, or a whole epoch."""
    stretch = run.config.group_batches or 1
    wanted = -(-steps // stretch) * stretch
    return min(wanted, run.steps_per_epoch) if steps else run.steps_per_epoch


def stretches(run: Any, steps: int, repeats: int) -> list[range]:
    """The beginning of epochs 0, 1, ...: each epoch draws its examples anew."""
    epoch = run.steps_per_epoch
    return [range(k * epoch, k * epoch + steps) for k in range(repeats)]


# --- Ours ---------------------------------------------------------------------------------------


def train(group: Group, steps: Iterable[int]) -> None:
    """Takes steps, with what the engine does on the host beside, and waits for the last."""
    pending, totals, tokens = [], {}, 0

    def settle() -> None:
        for pairs in jax.device_get(pending):
            for k in range(len(group)):
                metrics.add(totals, group.of_seed(pairs, k))
        pending.clear()

    for step in steps:
        pending.append(group.advance(step))
        tokens += sum(batches.num_tokens(step) for batches in group.batches)
        if len(pending) == AHEAD:
            settle()
    settle()
    jax.block_until_ready(group.state)


def compile_steps(group: Group, steps: Iterable[int]) -> float:
    """Takes one step of each length that occurs in `steps`; returns the seconds spent."""
    begun = time.perf_counter()
    train(group, {group.length(step): step for step in steps}.values())
    return time.perf_counter() - begun


def evaluate(group: Group) -> int:
    """Scores the dev sets; returns how many examples they have."""
    (outputs,) = group.outputs(group.state.params)
    return sum(map(len, outputs.values()))


# --- Measurements -------------------------------------------------------------------------------


def beside_peer(run: Any, steps: int, repeats: int, threads: int) -> dict[str, Any]:
    """Training and evaluation, ours and the peer's by turns."""
    left_out = side_by_side.peer_left_out()
    peer = None if left_out else finetune_peer.Peer(run, threads)
    ours, parts = Group([run], [0]), stretches(run, steps, repeats)
    (batches,) = ours.batches
    ids = [np.concatenate([batches.ids(step) for step in part]) for part in parts]
    ids = [chosen[chosen >= 0] for chosen in ids]
    compile_secs = compile_steps(ours, [step for part in parts for step in part])
    floor = finetune_floor.Floor(run, ours)
    floor({ours.length(step): step for part in parts for step in part}.values())  # compiles
    evaluate(ours)
    if peer:
        peer.train(ids[0][: 5 * run.config.batch_size])
        peer.evaluate()
    found, positions = collections.defaultdict(list), collections.Counter()
    for part, chosen in zip(parts, ids, strict=True):
        tokens = sum(batches.num_tokens(step) for step in part)
        positions["tokens"] += tokens
        positions["ours"] += run.config.batch_size * sum(batches.length(step) for step in part)
        gc.collect()
        started = clocks()
        train(ours, part)
        found["train"].append(rates(len(chosen), started))
        started = clocks()
        floor(part)
        found["floor"].append(rates(len(chosen), started))
        if peer:
            gc.collect()
            started = clocks()
            made = peer.train(chosen)
            found["peer train"].append(rates(len(chosen), started))
            if made["tokens"] != tokens:
                raise SystemExit(f"the peer saw {made['tokens']} tokens, ours {tokens}")
            positions["peer"] += made["positions"]
        started = clocks()
        found["evaluate"].append(rates(evaluate(ours), started))
        if peer:
            started = clocks()
            found["peer evaluate"].append(rates(peer.evaluate(), started))
    return {name: median(each) for name, each in found.items()} | {
        "compile_secs": compile_secs,
        "compiled_lengths": sorted({batches.length(step) for part in parts for step in part}),
        "tokens_per_example": positions["tokens"] / sum(map(len, ids)),
        "positions_per_token": positions["ours"] / positions["tokens"],
        "peer_positions_per_token": positions["peer"] / positions["tokens"] if peer else None,
        "peer": side_by_side.peer_versions() if peer else None,
        "peer_left_out": left_out,
        "parameters": flops.count_parameters(ours.state.params),
        "peer_parameters": peer and sum(p.numel() for p in peer.model.parameters()),
    }


def together(run: Any, steps: int, repeats: int, seeds: int) -> dict[str, Any]:
    """Seeds in one program, and the same seeds one after another, by turns."""
    parts = stretches(run, steps, repeats)
    every = [step for part in parts for step in part]
    joined, alone = (
        Group([run] * seeds, range(seeds)),
        [Group([run], [seed]) for seed in range(seeds)],
    )
    compile_secs = {"together": compile_steps(joined, every)}
    compile_secs["one_by_one"] = sum(compile_steps(each, every) for each in alone)
    found = collections.defaultdict(list)
    for part in parts:
        for each in (joined, *alone):
            each.length(part[0])  # an epoch is planned when it is first asked for
        count = sum(int((b.ids(step) >= 0).sum()) for b in joined.batches for step in part)
        started = clocks()
        train(joined, part)
        found["together"].append(rates(count, started))
        started = clocks()
        for each in alone:
            train(each, part)
        found["one_by_one"].append(rates(count, started))
    return {name: median(each) for name, each in found.items()} | {
        "seeds_together": seeds,
        "compile_secs": compile_secs,
        "parameters": flops.count_parameters(alone[0].state.params),
    }
