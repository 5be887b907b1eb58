"""Speed of fine-tuning and of evaluation, beside a loop in `transformers` and PyTorch.

  python -m benchmarks.finetune [--task=sst2] [--data=../shared/data/glue] [--shape=2x128x2]
      [--steps=200] [--repeats=3] [--threads=2] [--json=FILE]

Ours is the engine's own step on its own batches (bucketed by length, AdamW, dropout 0.1, clipping)
and its own evaluation. The peer is a loop like that of `run_glue`: BertForSequenceClassification of
the same shape and vocabulary, the same tokenizer files and batch size, tokenised before training,
padded to the longest of each batch, fused AdamW, a linear schedule, clipping, dropout 0.1. Both run
in float32, alternately; the numbers are medians of the repetitions, and compiling is timed apart.

Both sides see the same examples: those of the first `--steps` batches of an epoch, rounded up to
the stretches within which ours are sorted by length. The program checks that both see as many real
tokens. Each repetition draws another epoch; --steps=0 takes whole epochs.

The model has random parameters and an embedding of 30,000 rows; its tokenizer is trained on the
task's own text. Measure on an idle machine: PyTorch's threads spin while they wait for each other.

Target: SST-2 at 2x128x2, at least 3x the peer.
"""

import argparse
import functools
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import common
from scalelab.config import exits
from scalelab.tasks import task as task_lib

if TYPE_CHECKING:
    from scalelab.finetuning.run import TaskRun
    from scalelab.finetuning.warm_start import WarmStart

NUM_PIECES = 8_000  # pieces of the tokenizer


def prepare(given: argparse.Namespace, folder: Path) -> "TaskRun":
    """Prepares the task as the engine does."""
    from scalelab.config import files
    from scalelab.config.finetuning import override, resolve
    from scalelab.finetuning.run import TaskRun
    from scalelab.tasks import recipes

    task = task_lib.load_task(given.task)
    splits = task_lib.load(task, given.data, tests=False)
    values = files.load(files.FOLDER / "finetune.py").get_config(f"task={task.name}").to_dict()
    fields = dict(recipes.get("thesis").tasks.get(task.name, {}))
    fields |= {"machine.cache_dir": str(folder / "cache"), "machine.compile_cache_dir": None}
    config = resolve(override(values, fields))
    return TaskRun(task, splits, random_start(splits, given.shape, folder), config, folder / "run")


def random_start(splits: task_lib.Splits, shape: str, folder: Path) -> "WarmStart":
    """Makes a BERT of random parameters, with a tokenizer trained on the training texts."""
    from scalelab import systems
    from scalelab.config import files
    from scalelab.config import pretraining as config_lib
    from scalelab.data import tokenizers
    from scalelab.finetuning.warm_start import WarmStart
    from scalelab.training.pretrained import Pretrained

    made = files.load(files.FOLDER / "pretrain.py").get_config(f"system=bert,shape={shape}")
    config, system = config_lib.resolve(made.to_dict()), systems.load("bert")
    (folder / "tokenizer").mkdir()
    spec = tokenizers.TokenizerSpec(
        "wordpiece", NUM_PIECES, config.tokenizer.lowercase, system.SPECIAL_TOKENS, *system.FRAME
    )
    texts = [text for column in splits.train.texts for text in column]
    tokenizers.train(spec, texts, folder / "tokenizer")
    tokenizer = tokenizers.Tokenizer.load(folder / "tokenizer")
    opened = Pretrained(folder, config, system, tokenizer, params=None, step=0, finished=True)
    return WarmStart(opened, "none", None, lambda seed: "none")


def choose_steps(run: "TaskRun", steps: int, repeats: int) -> list[range]:
    """Returns the first `steps` of epochs 0, 1, ..., in whole sorted stretches; 0: whole epochs."""
    epoch, stretch = run.steps_per_epoch, run.config.group_batches or 1
    wanted = min(-(-steps // stretch) * stretch, epoch) if steps else epoch
    return [range(k * epoch, k * epoch + wanted) for k in range(repeats)]


class Ours:
    """The engine's training and evaluation of one seed."""

    def __init__(self, run: "TaskRun") -> None:
        from scalelab.finetuning.training import Finetuning

        self.batches, self.training = run.batches(0), Finetuning(run, 0)

    def train(self, steps: Iterable[int]) -> None:
        """Takes steps, in blocks as the loop does, and reads their metrics one block later."""
        import jax

        from scalelab import step as step_lib
        from scalelab.train import InFlight

        training, in_flight = self.training, InFlight(lambda *_: None, 1)
        alive, left = np.True_, list(steps)
        while left:
            training.step = left[0]
            if training.next_program() is None:
                with training.compiling() as parts:
                    training.blocks = step_lib.compile_blocks(parts)
            blocks, arrays = training.next_program()
            follows = next((k for k, s in enumerate(left) if s != left[0] + k), len(left))
            rows, rates = training.plan_block(min(blocks.size, follows))
            training.state, found, alive = blocks(training.state, arrays, rows, rates, alive)
            in_flight.add(found, len(rows))
            left = left[len(rows) :]
        in_flight.wait()
        jax.block_until_ready(training.state)

    def evaluate(self) -> int:
        """Scores the dev sets; returns how many examples they have."""
        return sum(map(len, self.training.predict(self.training.state.params).values()))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Prepares the task, then trains and evaluates ours and the peer alternately."""
    about = common.describe(given)
    with tempfile.TemporaryDirectory() as folder:
        run = prepare(given, Path(folder))
        ours, parts = Ours(run), choose_steps(run, given.steps, given.repeats)
        ids = [np.concatenate([ours.batches.ids(step) for step in part]) for part in parts]
        ids = [chosen[chosen >= 0] for chosen in ids]
        by_length = {ours.batches.length(step): step for part in parts for step in part}
        begun = time.perf_counter()
        ours.train(by_length.values())
        compile_secs = time.perf_counter() - begun
        num_dev, call = ours.evaluate(), functools.partial
        calls = [{"train": call(ours.train, part), "evaluate": ours.evaluate} for part in parts]
        tokens = {sum(ours.batches.num_tokens(step) for part in parts for step in part)}
        if not about["missing_peer"]:
            from benchmarks import peers

            peer = peers.Finetuning(run, given.threads)
            peer.train(ids[0][: 5 * run.config.batch_size])
            peer.evaluate()
            tokens.add(sum(map(peer.num_tokens, ids)))
            for own, chosen in zip(calls, ids, strict=True):
                own |= {"peer_train": call(peer.train, chosen), "peer_evaluate": peer.evaluate}
        if len(tokens) > 1:
            raise exits.Stopped(f"the sides saw different numbers of tokens: {tokens}")
        found = common.medians(calls)
    per_call = sum(map(len, ids)) / len(ids)  # the last batch of an epoch may be smaller
    return about | {
        name: common.rates(per_call if "train" in name else num_dev, spent)
        for name, spent in found.items()
    } | {
        "compile_secs": compile_secs,
        "compiled_lengths": sorted(by_length),
        "steps": len(parts[0]),
        "steps_per_epoch": run.steps_per_epoch,
        "batch_size": run.config.batch_size,
    }  # fmt: skip


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(
        f"{common.heading(found)}\n{found['task']}, {found['shape']}: {found['repeats']}"
        f" repetitions of {found['steps']:,} of {found['steps_per_epoch']:,} steps of"
        f" {found['batch_size']} examples\n{len(found['compiled_lengths'])} lengths compiled in"
        f" {found['compile_secs']:.1f} s\n"
    )
    rows = []
    for name in ("train", "peer_train", "evaluate", "peer_evaluate"):
        if name in found:
            made, base = found[name], found.get(f"peer_{name}")
            ratio = f"{made['per_sec'] / base['per_sec']:.2f}x" if base else ""
            rows.append([name, f"{made['per_sec']:,.0f}", f"{made['per_cpu_sec']:,.0f}", ratio])
    common.print_table(("examples", "a second", "a CPU second", "over peer"), rows)


parser = functools.partial(
    common.make_parser, "finetune", __doc__, task="sst2", data="../shared/data/glue",
    shape="2x128x2", steps=200, repeats=3, threads=2,
)  # fmt: skip


if __name__ == "__main__":
    common.start(parser(), measure, report)
