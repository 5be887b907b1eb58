"""The plan of a study: time and memory of every run on this machine, before anything starts.

It times three steps of each distinct program, batch size and length, and adds up. Fine-tuning and
evaluations are estimated from the same steps. Compiled programs stay in the cache for the runs.
"""

import collections
import dataclasses
import itertools
import json
import math
import pathlib
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scalelab.config import durations
from scalelab.config.pretraining import FEW_EXAMPLES
from scalelab.eval import evaluation
from scalelab.eval.score_names import MAIN
from scalelab.helpers.files import write_json
from scalelab.helpers.progress import format_secs
from scalelab.lab import tables
from scalelab.resources import host
from scalelab.studies import expand, finetunings, power
from scalelab.studies.expand import PlannedRun
from scalelab.studies.spec import StudySpec

if TYPE_CHECKING:
    from scalelab.data.loading import Data
    from scalelab.tasks.task import Splits
    from scalelab.training.blueprint import Blueprint, StepTime

HEADER = ("run", "N", "parameters", "steps", "tokens", "FLOPs", "pre-train", "scores", "memory")
WORD_PIECES, FRAME_TOKENS = 1.35, 3  # tokens per word, and special tokens per text, of a task
START_SECS = 6.0  # estimated time of a process before its first step
EVALUATION_SECS = 5.0  # estimated time of an evaluation without the model's passes


def make(spec: StudySpec, workdir: pathlib.Path, command: str, num_workers: int) -> str:
    """Plans a study, keeps the plan in WORKDIR/plans, and formats it.

    Args:
      spec: the study.
      workdir: folder of the study.
      command: command line that makes it.
      num_workers: processes; this one takes the cores that one of them will have.
    """
    host.bind_to_cores(0, num_workers)
    planned = expand.expand_runs(spec)
    finetunings.prepare(spec.finetune.data, planned[0].config, workdir)
    task_tokens = sum(
        count_tokens(finetunings.load(name, spec.finetune.data, workdir), spec, name)
        for name in spec.finetune.tasks
    )
    texts = {name: read_lengths(spec, name) for name in spec.evaluations}
    expand.write(spec, planned, workdir, command)
    machine = planned[0].config.machine
    host.configure_jax(machine.compile_cache_dir, planned[0].config.model.dtype)
    import jax

    card = jax.local_devices()[0].memory_stats() or {}  # {} of a CPU
    known: dict[str, Any] = {}
    print(
        f"planning {len(planned)} runs of {spec.name}: prepares their data, then compiles each"
        " different program and times three of its steps",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    libraries = host.peak_memory_bytes()
    measured = [measure(run, known) for run in planned]
    rows = [
        expect(spec, run, own, task_tokens, texts)
        for run, own in zip(planned, measured, strict=True)
    ]
    count_twins_once(rows, planned)
    arms = {(row.system, row.shape, row.variant): row for row in expand.make_rows(spec, planned)}
    # What libraries, data and the compiler take, as this process did; a step's own memory varies.
    # A card has none of it.
    most = max(row["peak_bytes"] for row in rows)
    libraries = 0 if card else max(libraries, host.peak_memory_bytes() - most)
    for row, run in zip(rows, planned, strict=True):
        row["peak_bytes"] += libraries
        row["title"] = arms[run.system, run.shape, run.variant].title(run)
    (workdir / "plans").mkdir(exist_ok=True)
    write_json(workdir / "plans" / f"{spec.name}.json", {"workers": num_workers, "runs": rows})
    free = card.get("bytes_limit") or host.available()
    return "\n".join([
        describe(rows, num_workers), describe_memory(rows, libraries, num_workers, free),
        *describe_validation(planned, [own.data for own in measured]),
        *describe_claims(spec, planned),
    ])  # fmt: skip


def count_twins_once(rows: Sequence[dict[str, Any]], planned: Sequence[PlannedRun]) -> None:
    """Sets the cost of a pre-training to 0 if an earlier run has the same config."""
    configs = [run.config for run in planned]
    for i, row in enumerate(rows):
        if configs[i] in configs[:i]:  # `jobs.copy_twin` copies that run
            row.update(secs=0.0, flops=0.0, start_secs=START_SECS)


def describe_memory(
    rows: Sequence[dict[str, Any]], libraries: int, num_workers: int, free: int | None
) -> str:
    """Returns what the largest run takes, and whether as many as run at a time fit.

    Args:
      rows: the plan of each run, with its bytes.
      libraries: bytes of a process beside its step; 0 on a card.
      num_workers: processes at a time.
      free: bytes that all of them may take together; None: not known.
    """
    row = max(rows, key=lambda row: row["peak_bytes"])
    peak, state = row["peak_bytes"], row["state_bytes"]
    parts = {
        "parameters and optimizer": state,
        "batch, gradients and activations": peak - state - libraries,
        "libraries and data": libraries,
    }
    shown = ", ".join(f"{size / 2**30:.2g} {name}" for name, size in parts.items() if size)
    text = f"memory: at most {peak / 2**30:.2f} GiB of a run ({shown})"
    if free:
        verdict = "fits" if num_workers * peak <= free else "does NOT fit"
        together = f"{num_workers * peak / 2**30:.2f} GiB with {num_workers} at a time"
        text += f"; {together} {verdict} in {free / 2**30:.1f} GiB here"
    return text + "; for other devices run scalelab fit"


def describe_validation(planned: Sequence[PlannedRun], data: Sequence["Data"]) -> list[str]:
    """Returns the sizes of the validations, and a warning if one is too small for a verdict."""
    lines, few = list[str](), dict[str, None]()
    for run, own in zip(planned, data, strict=True):
        phases = {p.max_len: p.num_validated(run.config.eval.num_examples) for p in own.phases}
        size, num = max(phases.items())
        if num < FEW_EXAMPLES:
            held = len(own.phases[-1].valid)
            more = "data.valid_rate, or use more text"
            field = "eval.num_examples" if held >= FEW_EXAMPLES else more
            few[
                f"validation: a verdict needs {FEW_EXAMPLES} examples of length {size}, not {num}:"
                f" raise config.pretrain.{field}"
            ] = None
        counts = ", ".join(f"{num:,} examples of length {size}" for size, num in phases.items())
        lines.append(
            f"validation: {own.valid.num_documents:,} documents, {len(own.valid.tokens):,} tokens;"
            f" it reads {counts}"
        )
    return [*dict.fromkeys(lines), *few]


def describe_claims(spec: StudySpec, planned: Sequence[PlannedRun]) -> list[str]:
    """Returns the power of all claims; a line for each about losses of different things."""
    from scalelab.lab.compare import claim_lines, comparability

    rows = expand.make_rows(spec, planned)
    measured = (*spec.finetune.tasks, *spec.evaluations)
    found, asked = [], []
    for stated in spec.lines:
        claim = claim_lines.parse(stated, rows, measured)
        asked.append(power.PlannedClaim(claim.score, len(claim.pairs), claim.region))
        pairs = claim.pairs if claim.score in ("loss", "bits_per_byte") else ()
        fields = {x for (a, *_), (b, *_) in pairs
                  for x in comparability.loss_apart(a.fields, b.fields, claim.score)}  # fmt: skip
        if fields:
            what = comparability.LOSSES.format(", ".join(sorted(fields)))
            found.append(f"{claim.text} on {claim.score} will stay undecided. {what}")
            asked.pop()
    if not spec.lines:
        asked = [power.PlannedClaim(MAIN[name], 1) for name in measured]
    return found + power.describe(asked, spec, len(rows))


def count_tokens(splits: "Splits", spec: StudySpec, name: str) -> float:
    """Estimates the tokens of a fine-tuning on a task; those that are only scored count a third."""
    values = finetunings.config_values(spec.finetune, name)
    columns = (column[:500] for column in splits.train.texts)
    words = statistics.mean(len(" ".join(texts).split()) for texts in zip(*columns, strict=True))
    num_train = min(len(splits.train), values["max_train_examples"] or len(splits.train))
    num_dev = sum(len(records) for records in splits.dev.values() if records is not None)
    evaluations = math.ceil(values["epochs"] / values["eval_every_epochs"])
    length = min(words * WORD_PIECES + FRAME_TOKENS, values["max_len"])
    return length * (values["epochs"] * num_train + evaluations * num_dev / 3)


def read_lengths(spec: StudySpec, name: str) -> list[float]:
    """Estimates the number of tokens of each text that an evaluation scores."""
    found = evaluation.load(name)
    items = evaluation.read(found, pathlib.Path(str(spec.evaluation_data)) / found.folder)
    most = evaluation.choose_options(found, spec.evaluation_fields).get("per_group")
    if most:
        nth = collections.defaultdict(itertools.count)
        items = [item for item in items if next(nth[item.groups[0]]) < most]
    texts = re.findall(r'"((?:[^"\\]|\\.)*)"', json.dumps(items))
    return [len(text.split()) * WORD_PIECES + FRAME_TOKENS for text in texts if " " in text]


class Measured(NamedTuple):
    """The model, its steps by phase, and the data, for all runs with equal programs and texts."""

    plan: "Blueprint"
    steps: list["StepTime"]
    data: "Data"


def measure(run: PlannedRun, known: dict[str, Any]) -> Measured:
    """Times the steps of a run and loads its data, unless `known` has them; adds them to it."""
    from scalelab import systems
    from scalelab.data.loading import load_data
    from scalelab.training import blueprint

    c = run.config
    texts = (c.system, c.data, c.tokenizer, c.short, c.long, c.format_options)
    phases = [(phase.max_len, phase.batch_size) for phase in c.phases]
    others = {"seed", "mask_copies", "data", "short", "long", "optim", "eval"}
    fields = {k: v for k, v in dataclasses.asdict(c).items() if k not in others}
    net = (fields, c.data.format, phases)
    if repr(net) not in known:
        plan, sizes = blueprint.draw(c), ", ".join(f"{b} x {t}" for t, b in phases)
        print(f"timing steps: {run.system} {run.shape}, {sizes}", file=sys.stderr, flush=True)
        known[repr(net)] = plan, [blueprint.time_steps(plan, phase) for phase in c.phases]
    if repr(texts) not in known:
        known[repr(texts)] = load_data(c, systems.load(run.system))
    plan, steps = known[repr(net)]
    return Measured(plan, steps, known[repr(texts)])


def expect(
    spec: StudySpec,
    run: PlannedRun,
    measured: Measured,
    task_tokens: float,
    texts: Mapping[str, Sequence[float]] = {},  # noqa: B006 never changed
) -> dict[str, Any]:
    """Estimates the cost of one pre-training with its fine-tunings and evaluations.

    A fine-tuning takes the time per token of the first phase, without the FLOPs of the heads. An
    evaluation takes a third of a training step per token; a masked model reads a text once for each
    of its tokens.

    Args:
      spec: the study.
      run: the run.
      measured: the timed steps.
      task_tokens: tokens of all tasks together in one fine-tuning.
      texts: evaluation -> number of tokens of each text.
    """
    import jax

    from scalelab.resources import flops

    plan, steps, data = measured
    tokens = [own.step_tokens for own in data.phases]
    costs = {"tokens": tokens, "flops": [cost.train for cost in plan.costs]}
    found = durations.make_plan(run.config, [p.steps_per_epoch for p in data.phases], costs)
    per_step = [step.secs for step in steps] if found.clock == "secs" else found.costs
    counts = [
        math.ceil((end - begin) / cost)
        for begin, end, cost in zip([0.0, *found.ends], found.ends, per_step, strict=False)
    ]

    def total(each: Sequence[float]) -> float:
        return sum(n * amount for n, amount in zip(counts, each, strict=True))

    phase, forward, scores = run.config.short, plan.costs[0], 0.0
    per_token = steps[0].secs / (phase.batch_size * phase.max_len)
    if spec.stages[run.stage].finetune == "all":
        from_scratch = spec.finetune.scratch and run.seed == 0
        share = 1 - forward.head / max(forward.forward, 1)  # counts have no products
        scores = spec.finetune.seeds * task_tokens * share * per_token * (1 + from_scratch)
        masked = next((t.objective.predicts for t in plan.terms if t.objective.predicts), "next")
        for name, own in texts.items():
            lengths = [min(length, phase.max_len) for length in own]
            passes = sum(n * n if masked == "masked" else n for n in lengths)
            times = 1 + len(spec.evaluation_shares)
            times += from_scratch and evaluation.load(name).scratch
            scores += times * (EVALUATION_SECS + passes * per_token / 3)
        scores += START_SECS * bool(spec.finetune.tasks or texts)
    kept = run.config.machine.compile_cache_dir is not None and run.seed > 0
    return {
        "name": run.name,
        "n_model": run.n_model,
        "num_params": flops.count_parameters(plan.state.params),
        "steps": sum(counts),
        "tokens": total(tokens),
        "flops": total(costs["flops"]),
        "secs": total([step.secs for step in steps]),
        # Start of the process, and compiling unless an earlier seed has left its programs.
        "start_secs": START_SECS + (0.0 if kept else sum(step.compile_secs for step in steps)),
        "finetune_secs": scores,
        "peak_bytes": max(step.num_bytes for step in steps),  # without libraries
        "state_bytes": sum(
            leaf.size * leaf.dtype.itemsize
            for tree in (plan.state.params, plan.state.opt_state)
            for leaf in jax.tree.leaves(tree)
        ),
    }


def describe(rows: Sequence[dict[str, Any]], num_workers: int) -> str:
    """Formats the plan as a table with its total."""
    cells = [
        [
            e.get("title", e["name"]),
            f"{e['n_model']:,}", f"{e['num_params']:,}", f"{e['steps']:,}",
            f"{e['tokens']:,.0f}", f"{e['flops']:.2g}",
            format_secs(e["secs"] + e["start_secs"]), format_secs(e["finetune_secs"]),
            f"{e['peak_bytes'] / 2**30:.2f} GiB",
        ]
        for e in rows
    ]  # fmt: skip
    total = sum(e["start_secs"] + e["secs"] + e["finetune_secs"] for e in rows)
    gpus = " at best, as they share the GPU" * (num_workers > 1 and host.num_gpus() > 0)
    return tables.plain(HEADER, cells) + (
        f"{len(rows)} runs, {sum(e['flops'] for e in rows):.2g} FLOPs of pre-training;"
        f" {format_secs(total)} of one process, {format_secs(total / num_workers)} with"
        f" {num_workers}{gpus}. Pre-training is computed from steps and compilations timed here."
        f" Start of a process ({START_SECS:g} s), fine-tuning and evaluations are rough estimates."
    )
