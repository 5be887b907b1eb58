"""Speed of fine-tuning and of evaluation, beside a loop in `transformers` and PyTorch.

  python -m benchmarks.finetune [--task=sst2] [--data=../shared/data/glue] [--shape=2x128x2]
      [--steps=200] [--repeats=3] [--threads=2] [--json=FILE] [--quick]

Ours is the engine's own step on its own batches (bucketed by length, AdamW, dropout 0.1, clipping)
and its own evaluation. The peer is a loop like that of `run_glue`: BertForSequenceClassification of
the same shape and vocabulary, the same tokenizer files and batch size, tokenised before training,
padded to the longest of each batch, fused AdamW, a linear schedule, clipping, dropout 0.1. Both run
in float32, alternately; the numbers are medians of the repetitions, and compiling is timed apart.

Both sides see the same examples: those of the first `--steps` batches of an epoch, rounded up to
the stretches within which ours are sorted by length. The program checks that both see as many real
tokens. Each repetition draws another epoch; --steps=0 takes whole epochs.

The net has random parameters and an embedding of 30,000 rows; its tokenizer is trained on the
task's own text. Measure on an idle machine: PyTorch's threads spin while they wait for each other.

Target: SST-2 at 2x128x2, at least 3x the peer.
"""

import argparse
import collections
import hashlib
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from scalelab.tasks import task as task_lib

QUICK = {"data": None, "shape": "2x8x1", "steps": 4, "repeats": 2}  # no data: rows are invented
QUICK_FIELDS = {"batch_size": 8, "group_batches": 2, "machine.eval_batch_size": 8}
VOCAB_SIZE, NUM_PIECES = 30_000, 8_000  # rows of the embedding; pieces of the trained tokenizer
INVENTED_VOCAB_SIZE, INVENTED_PIECES = 97, 40
WORDS = "at by do go if in me no or up".split()


# --- What is trained ------------------------------------------------------------------------------


def prepare(given: argparse.Namespace, folder: Path) -> Any:
    """Prepares the task as the engine does; returns a finetuning.run.TaskRun."""
    from scalelab.config import files
    from scalelab.config.finetuning import override, resolve
    from scalelab.finetuning.run import TaskRun
    from scalelab.tasks import recipes

    task = task_lib.load_task(given.task)
    splits = invent_splits(task)
    if given.data is not None:
        splits = task_lib.load(task, given.data, tests=False)
    values = files.load(files.FOLDER / "finetune.py").get_config(f"task={task.name}").to_dict()
    fields = dict(recipes.get("thesis").tasks.get(task.name, {}))
    fields |= {"machine.cache_dir": str(folder / "cache"), "machine.compile_cache_dir": None}
    fields |= QUICK_FIELDS if given.quick else {}
    config = resolve(override(values, fields))
    return TaskRun(task, splits, random_start(splits, given, folder), config, folder / "run")


def invent_splits(task: Any) -> Any:
    """Makes splits of a task in words that mean nothing."""
    from scalelab.tasks.records import Records

    def invent(count: int, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        columns = tuple(
            [" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(count)]
            for _ in task.columns.texts
        )
        labels = np.arange(count) % (task.num_outputs + task.regression)
        digest = hashlib.sha256(repr(columns).encode()).hexdigest()
        kind = np.float32 if task.regression else np.int32
        return Records(columns, labels.astype(kind), "invented", digest)

    dev = {split.name: None for split in task.dev_splits}
    dev[task.dev_splits[0].name] = invent(20, 1)
    return task_lib.Splits(invent(36, 0), dev, {})


def random_start(splits: Any, given: argparse.Namespace, folder: Path) -> Any:
    """Makes a BERT of random parameters, with a tokenizer trained on the training texts."""
    from scalelab import systems
    from scalelab.config import files
    from scalelab.config import pretraining as config_lib
    from scalelab.data import tokenizers
    from scalelab.finetuning.warm_start import WarmStart
    from scalelab.runs.pretrained import Pretrained

    made = files.load(files.FOLDER / "pretrain.py").get_config(f"system=bert,shape={given.shape}")
    pieces, made.tokenizer.vocab_size = NUM_PIECES, VOCAB_SIZE
    if given.data is None:
        pieces, made.tokenizer.vocab_size = INVENTED_PIECES, INVENTED_VOCAB_SIZE
    config, system = config_lib.resolve(made.to_dict()), systems.load("bert")
    (folder / "tokenizer").mkdir()
    spec = tokenizers.TokenizerSpec(
        "wordpiece", pieces, config.tokenizer.lowercase, system.SPECIAL_TOKENS, *system.FRAME
    )
    texts = [text for column in splits.train.texts for text in column]
    tokenizers.train(spec, texts, folder / "tokenizer")
    tokenizer = tokenizers.Tokenizer.load(folder / "tokenizer")
    opened = Pretrained(folder, config, system, tokenizer, params=None, step=0, finished=True)
    return WarmStart(opened, "none", None, lambda seed: "none")


def choose_steps(run: Any, steps: int, repeats: int) -> list[range]:
    """Returns the first steps of epochs 0, 1, ...: whole sorted stretches, or whole epochs."""
    epoch, stretch = run.steps_per_epoch, run.config.group_batches or 1
    wanted = min(-(-steps // stretch) * stretch, epoch) if steps else epoch
    return [range(k * epoch, k * epoch + wanted) for k in range(repeats)]


# --- Sides ----------------------------------------------------------------------------------------


class Ours:
    """The engine's training and evaluation of one seed.

    Args:
      run: a TaskRun.
    """

    def __init__(self, run: Any) -> None:
        import jax

        from scalelab.finetuning.step import compiled

        self.run, self.batches = run, run.batches(0)
        self.program = compiled(run.trained, run.mesh)
        state = run.first_state(0, run.first_params(0))
        self.state = jax.device_put(state, self.program.shardings)

    def train(self, steps: Iterable[int]) -> None:
        """Takes steps, reading the metrics of several at a time as the engine does."""
        import jax

        from scalelab.finetune import AHEAD

        pending, rate = [], np.float32(self.run.config.optim.learning_rate)
        for step in steps:
            batch = self.batches(step)
            batch = batch if self.run.rows is None else self.run.rows.renumber(batch)
            self.state, pairs = self.program.train(self.state, batch, rate)
            pending.append(pairs)
            if len(pending) == AHEAD:
                jax.device_get(pending)
                pending.clear()
        jax.block_until_ready((pending, self.state))

    def evaluate(self) -> int:
        """Scores the dev sets; returns how many examples they have."""
        from scalelab import finetune

        (outputs,) = finetune.evaluate(self.run, self.program, self.state.params, self.state.fixed)
        return sum(map(len, outputs.values()))


# --- Measurements ---------------------------------------------------------------------------------


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Prepares the task and measures all sides."""
    about = common.describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        run = prepare(given, Path(folder))
        found = measure_sides(run, given, about["missing_peer"])
    opened = run.start.opened
    return about | found | {
        "task": run.task.name,
        "invented": given.data is None,
        "shape": given.shape,
        "vocab_size": opened.config.tokenizer.vocab_size,
        "pieces": opened.tokenizer.vocab_size,
        "batch_size": run.config.batch_size,
        "steps_per_epoch": run.steps_per_epoch,
        "repeats": given.repeats,
        "threads": given.threads,
    }  # fmt: skip


def measure_sides(run: Any, given: argparse.Namespace, missing: str | None) -> dict[str, Any]:
    """Trains and evaluates ours and the peer alternately."""
    from scalelab.resources import flops

    ours, parts = Ours(run), choose_steps(run, given.steps, given.repeats)
    ids = [np.concatenate([ours.batches.ids(step) for step in part]) for part in parts]
    ids = [chosen[chosen >= 0] for chosen in ids]
    of_each_length = {ours.batches.length(step): step for part in parts for step in part}
    begun = time.perf_counter()
    ours.train(of_each_length.values())
    compile_secs = time.perf_counter() - begun
    peer, num_dev = None, ours.evaluate()
    if not missing:
        from benchmarks import peers

        peer = peers.Finetuning(run, given.threads)
        peer.train(ids[0][: 5 * run.config.batch_size])
        peer.evaluate()
    calls, tokens, positions = collections.defaultdict(list), 0, 0
    for part, chosen in zip(parts, ids, strict=True):
        tokens += sum(ours.batches.num_tokens(step) for step in part)
        positions += run.config.batch_size * sum(ours.batches.length(step) for step in part)
        calls["train"].append(common.timed(ours.train, part))
        calls["evaluate"].append(common.timed(ours.evaluate))
        if peer:
            calls["peer_train"].append(common.timed(peer.train, chosen))
            calls["peer_evaluate"].append(common.timed(peer.evaluate))
    if peer and sum(map(peer.num_tokens, ids)) != tokens:
        raise SystemExit(f"the sides saw different tokens: ours {tokens}")
    per_call = sum(map(len, ids)) / len(ids)  # the last batch of an epoch may be smaller
    return {
        name: common.rates(num_dev if "evaluate" in name else per_call, each)
        for name, each in calls.items()
    } | {
        "steps": len(parts[0]),
        "compile_secs": compile_secs,
        "compiled_lengths": sorted(of_each_length),
        "tokens_per_example": tokens / sum(map(len, ids)),
        "positions_per_token": positions / tokens,
        "parameters": flops.count_parameters(ours.state.params),
        "peer": peers.describe_versions() if peer else None,
        "peer_parameters": peer and sum(p.numel() for p in peer.model.parameters()),
    }


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"\n{found['task']}{' (invented)' * found['invented']}, {found['shape']},"
        f" {found['parameters']:,} trained parameters, embedding of {found['vocab_size']:,} rows,"
        f" tokenizer of {found['pieces']:,} pieces\n{common.heading(found)}\n"
        f"{found['repeats']} repetitions of {found['steps']:,} of {found['steps_per_epoch']:,}"
        f" steps of {found['batch_size']} examples; {found['tokens_per_example']:.1f} tokens an"
        f" example, {found['positions_per_token']:.2f} positions computed per token\n"
        f"{len(found['compiled_lengths'])} lengths compiled in {found['compile_secs']:.1f} s\n\n"
        f"{'examples':16} {'a second':>10} {'CPU second':>11} {'over peer':>10}"
    )
    for name, base in (
        ("train", "peer_train"), ("peer_train", ""), ("evaluate", "peer_evaluate"),
        ("peer_evaluate", ""),
    ):  # fmt: skip
        if name in found:
            made = found[name]
            ratio = f"{made['per_sec'] / found[base]['per_sec']:9.2f}x" if base in found else ""
            print(f"{name:16} {made['per_sec']:10,.0f} {made['per_cpu_sec']:11,.0f} {ratio}")
    if found["peer"]:
        print(f"\npeer: {found['peer']}, {found['peer_parameters']:,} parameters")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = common.make_parser("finetune", __doc__, repeats=3)
    tasks = common.choice("task", task_lib.task_names())
    made.add_argument("--task", type=tasks, default="sst2")
    made.add_argument("--data", default="../shared/data/glue", help="holds SST-2/, RTE/, ...")
    made.add_argument("--shape", type=common.shape, default="2x128x2")
    made.add_argument("--steps", type=common.count(0), default=200, help="0: whole epochs")
    return common.parse(made, argv, QUICK)


def main(given: argparse.Namespace) -> None:
    """Measures and prints."""
    found = measure(given)
    common.write_json(found, given.json)
    report(found)


if __name__ == "__main__":
    common.start(parse, main)
