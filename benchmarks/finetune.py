"""Speed of fine-tuning and of evaluation, beside a loop in `transformers` and PyTorch.

  python -m benchmarks.finetune [--task=sst2] [--data=../shared/data/glue] [--shape=2x128x2]
      [--steps=200] [--repeats=3] [--threads=2] [--run=RUN_DIR] [--json=FILE] [--quick]
  python -m benchmarks.finetune --task=rte --seeds_together=8 [--steps=0] ...

The first measures the engine's own step on its own batches (bucketed by length, AdamW, dropout 0.1,
clipping) and its own evaluation. The peer is a loop like that of `run_glue`, in `transformers` and
PyTorch: BertForSequenceClassification of the same shape and vocabulary, the same tokenizer files,
the same batch size, tokenised before training, padded to the longest of each batch, fused AdamW as
`Trainer` has it, a linear schedule, clipping, dropout 0.1. Both in float32 on two threads, and
alternately: ours, the peer, ours, ...; medians of the repetitions.

Batches of ours differ in length, so examples are counted, not steps, and both sides see the very
same ones: those of the first `--steps` batches of an epoch, rounded up to whole stretches within
which ours are sorted, which makes them a sample drawn at random without replacement; each
repetition draws another. --steps=0 takes whole epochs: with three repetitions, three epochs. That
both see as many real tokens is checked; what each computes besides, for padding, is printed.
Compiling stands apart. Beside them stands what a step cannot do without: the matrix products of its
layers and one update of all parameters, alone (finetune_floor.py).

Measure on a machine that does nothing else: PyTorch's threads wait spinning for each other, and
where one of them has to wait for a core the peer takes ten times as long and as much CPU time.
--threads=1 suffers least.

The second measures so many seeds in one program against the same seeds one after another.

Neither network nor a finished run is needed: without --run the net has random parameters and 30,000
rows in its embedding, and its tokenizer is trained on the task's own text, on fewer pieces, since a
task supports no 30,000.

Target: SST-2 at 2x128x2, at least 3x the peer.
"""

import argparse
from typing import Any

from benchmarks import arguments as command_line
from benchmarks import side_by_side
from benchmarks.side_by_side import BUSY
from scalelab.tasks import task

QUICK = {"data": None, "shape": "2x8x1", "steps": 4, "repeats": 2}  # no data: rows are invented


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    share = found["steps"] / found["steps_per_epoch"]
    print(
        f"\n{found['task']}{' (invented)' if found['invented'] else ''}, {found['shape']},"
        f" {found['parameters']:,} parameters in a step's update, embedding of"
        f" {found['vocab_size']:,} rows, tokenizer of {found['tokenizer']:,} pieces\n"
        f"{found['device']}, {found['threads']} thread(s), load {found['load']:.1f} at the start"
        f"{BUSY if found['load'] > 0.5 else ''}\n"
        f"batches of {found['batch_size']}; {found['repeats']} repetitions of {found['steps']:,}"
        f" steps, {'a whole epoch' if share == 1 else f'{share:.1%} of an epoch drawn at random'}\n"
    )

    def table(rows: tuple[tuple[str, str, str | None], ...]) -> None:
        print(f"{'examples':32} {'a second':>10} {'CPU second':>11} {'ratio':>9}")
        for title, key, base in rows:
            made, per = found[key], f"{'':>9}"
            if base is not None and base in found:
                per = f"{made['examples_per_sec'] / found[base]['examples_per_sec']:8.2f}x"
            print(
                f"{title:32} {made['examples_per_sec']:10,.0f}"
                f" {made['examples_per_cpu_sec']:11,.0f} {per}"
            )

    if "together" in found:
        seeds = found["seeds_together"]
        table(
            (
                (f"{seeds} seeds one after another", "one_by_one", None),
                (f"{seeds} seeds in one program", "together", "one_by_one"),
            )
        )
        secs = found["compile_secs"]
        print(f"\ncompiling: {secs['one_by_one']:.1f} s, in one program {secs['together']:.1f} s")
        return
    rows = (
        ("training", "train", "peer train"),
        ("its products and update alone", "floor", "peer train"),
        ("training, peer", "peer train", None),
        ("evaluation", "evaluate", "peer evaluate"),
        ("evaluation, peer", "peer evaluate", None),
    )
    table(tuple(row for row in rows if row[1] in found))
    lengths = len(found["compiled_lengths"])
    print(
        f"\n{found['tokens_per_example']:.1f} tokens an example; {lengths} lengths compiled in"
        f" {found['compile_secs']:.1f} s\npositions computed per token:"
        f" {found['positions_per_token']:.2f}",
        end="",
    )
    if found["peer"]:
        print(
            f", peer {found['peer_positions_per_token']:.2f}\n"
            f"peer: {found['peer']}, {found['peer_parameters']:,} parameters"
        )
    else:
        print(f"\nthe peer is left out: {found['peer_left_out']}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("finetune", __doc__)
    tasks = command_line.one_of("task", task.task_names())
    made.add_argument("--task", type=tasks, default="sst2")
    made.add_argument("--data", default="../shared/data/glue", help="holds SST-2/, RTE/, ...")
    net = made.add_mutually_exclusive_group()
    net.add_argument("--shape", type=command_line.shape, default="2x128x2",
                     help="heads x width x layers")  # fmt: skip
    net.add_argument("--run", help="a run of BERT that gives net and tokenizer")
    made.add_argument("--steps", type=command_line.count(0), default=200,
                      help="a repetition; 0: whole epochs")  # fmt: skip
    made.add_argument("--seeds_together", type=command_line.count(), default=1,
                      help="so many seeds at once, without the peer")  # fmt: skip
    command_line.add_common(made, repeats=3, quick="a tiny net, invented rows and few steps")
    return command_line.read(made, argv, QUICK)


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    from benchmarks import finetune_measure  # JAX, which must not start before `pin`

    found = finetune_measure.measure(arguments)
    side_by_side.keep(found, arguments.json)
    report(found)


if __name__ == "__main__":
    side_by_side.start(parse, main)
