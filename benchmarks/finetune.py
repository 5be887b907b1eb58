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
Compiling stands apart.

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
import collections
import gc
import hashlib
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalelab import environment

VOCAB_SIZE = 30_000  # rows of the embedding, as in pre-training
NUM_PIECES = 8_000  # of the tokenizer that is trained here
QUICK = {"shape": "2x8x1", "steps": 4, "repeats": 2, "pieces": 40, "vocab_size": 97}
QUICK_FIELDS = {"batch_size": 8, "group_batches": 2, "machine.eval_batch_size": 8}
WORDS = "at by do go if in me no or up".split()
BUSY = ": others use the cores, so these numbers say little"
Clock = tuple[float, float]


def pin(threads: int) -> None:
    """Gives this process so many cores; XLA has a thread for each. Call before JAX starts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))


def without_peer() -> str | None:
    """Why the peer cannot be measured; None: it can."""
    import jax

    if jax.default_backend() != "cpu":
        return f"it is measured on CPU, not beside {jax.devices()[0].device_kind}"
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed (pip install '.[parity]')"
    return None


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


# --- The task and the net -----------------------------------------------------------------------


def config_values(name: str, arguments: str = "") -> dict[str, Any]:
    """What configs/<name>.py gives."""
    path = Path(__file__).resolve().parent.parent / f"configs/{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(arguments).to_dict()


def invented(task: Any, count: int, seed: int) -> Any:
    """Records of a task in words that mean nothing."""
    from scalelab.data.task_files import Records

    rng = np.random.default_rng(seed)
    columns = tuple(
        [" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(count)]
        for _ in task.columns.texts
    )
    labels = np.arange(count) % (task.num_outputs + task.regression)
    digest = hashlib.sha256(repr(columns).encode()).hexdigest()
    kind = np.float32 if task.regression else np.int32
    return Records(columns, labels.astype(kind), "invented", digest)


def read(task: Any, arguments: argparse.Namespace) -> Any:
    """The task's splits; invented ones in --quick."""
    from scalelab.eval import task as task_lib

    if not arguments.quick:
        return task_lib.load(task, arguments.data, tests=False)
    dev = {split.name: None for split in task.dev_splits}
    dev[task.dev_splits[0].name] = invented(task, 20, 1)
    return task_lib.Splits(invented(task, 36, 0), dev, {})


def random_start(splits: Any, arguments: argparse.Namespace, folder: Path) -> Any:
    """A net of random parameters, with a tokenizer trained on the task's training texts."""
    from scalelab import config as config_lib
    from scalelab import finetune_run, systems
    from scalelab.data import tokenizers
    from scalelab.pretrained import Pretrained

    values = config_values("pretrain", f"system=bert,shape={arguments.shape}")
    size, pieces = VOCAB_SIZE, NUM_PIECES
    if arguments.quick:
        size, pieces = QUICK["vocab_size"], QUICK["pieces"]
    values["tokenizer"]["vocab_size"] = size
    config, system = config_lib.resolve(values), systems.load("bert")
    (folder / "tokenizer").mkdir()
    spec = tokenizers.TokenizerSpec(
        "wordpiece", pieces, config.tokenizer.lowercase, system.SPECIAL_TOKENS, *system.FRAME
    )
    texts = [text for column in splits.train.texts for text in column]
    tokenizers.train(spec, texts, folder / "tokenizer")
    tokenizer = tokenizers.Tokenizer.load(folder / "tokenizer")
    opened = Pretrained(folder, config, system, tokenizer, params=None, step=0, finished=True)
    return finetune_run.Start(opened, "none", None, "none")


def prepare(arguments: argparse.Namespace, folder: Path) -> Any:
    """The task as the engine prepares it: a finetune_run.TaskRun."""
    from scalelab import finetune_run
    from scalelab.eval import recipes
    from scalelab.eval import task as task_lib
    from scalelab.finetune_config import override, resolve

    task = task_lib.load_task(arguments.task)
    splits = read(task, arguments)
    if arguments.run:
        start = finetune_run.open_start(arguments.run)
        if start.opened.config.system != "bert":
            raise ValueError(f"--run={arguments.run}: the peer is BERT; give a run of system=bert")
    else:
        start = random_start(splits, arguments, folder)
    values = config_values("finetune", f"task={task.name}")
    fields = {"machine.cache_dir": str(folder / "cache"), "machine.compile_cache_dir": None}
    fields |= QUICK_FIELDS if arguments.quick else {}
    config = resolve(
        override(values, dict(recipes.get("thesis").tasks.get(task.name, {})) | fields)
    )
    return finetune_run.TaskRun(task, splits, start, config, folder / "run")


# --- Ours ---------------------------------------------------------------------------------------


class Ours:
    """Seeds that train in one program, fed as `finetune_loop` feeds them.

    Args:
      run: a finetune_run.TaskRun.
      seeds: they train together.
    """

    def __init__(self, run: Any, seeds: list[int]) -> None:
        from scalelab import finetune_step
        from scalelab.optim import schedules

        self.run, self.count = run, len(seeds)
        self.batches = [run.batches(seed) for seed in seeds]
        self.run_train, self.run_predict = finetune_step.compiled(run.learner, self.count)
        self.schedule = schedules.get(run.config.optim.schedule)
        starts = run.start.bodies or (lambda seed: None)
        example = self.batches[0](0)
        states = [run.learner.init(seed, starts(seed), example) for seed in seeds]
        self.state = finetune_step.stack_states(states)

    def length(self, step: int) -> int:
        """To which the batches of a step are padded."""
        return max(batches.length(step) for batches in self.batches)

    def train(self, steps: Iterable[int]) -> None:
        """Takes steps, and waits for the last."""
        import jax

        from scalelab import finetune_step, metrics

        pending, totals, tokens = [], {}, 0
        optim, num_steps = self.run.config.optim, self.run.num_steps
        warmup = optim.warmup_rate * num_steps

        def settle() -> None:
            for pairs in jax.device_get(pending):
                for k in range(self.count):
                    metrics.add(totals, finetune_step.pick(pairs, k, self.count))
            pending.clear()

        for step in steps:
            length = self.length(step)
            rows = [batches(step, length) for batches in self.batches]
            batch = rows[0] if self.count == 1 else jax.tree.map(lambda *v: np.stack(v), *rows)
            rate = np.float32(optim.learning_rate * self.schedule(step, warmup, num_steps))
            self.state, pairs = self.run_train(self.state, batch, rate)
            pending.append(pairs)
            tokens += sum(batches.num_tokens(step) for batches in self.batches)
            if len(pending) == 8:
                settle()
        settle()
        jax.block_until_ready(self.state)

    def compile(self, steps: Sequence[int]) -> float:
        """Takes one step of each length that occurs in `steps`; returns the seconds spent."""
        begun = time.perf_counter()
        self.train({self.length(step): step for step in steps}.values())
        return time.perf_counter() - begun

    def evaluate(self) -> int:
        """Scores the dev sets; returns how many examples they have."""
        count = 0
        for examples in self.run.dev.values():
            if examples is not None:
                params, fixed = self.state.params, self.state.fixed
                self.run.predict(self.run_predict, params, fixed, examples, self.count)
                count += len(examples)
        return count


# --- The peer -----------------------------------------------------------------------------------


class Peer:
    """Fine-tuning as `run_glue` does it, in float32 on the CPU.

    Args:
      run: a finetune_run.TaskRun, for the shape, the texts and the numbers of the recipe.
      threads: how many PyTorch uses.
    """

    def __init__(self, run: Any, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.run = run
        net, opened = run.start.opened.config.net, run.start.opened
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(opened.tokenizer_dir)
        self.model = transformers.BertForSequenceClassification(
            transformers.BertConfig(
                vocab_size=opened.config.tokenizer.vocab_size,
                hidden_size=net.width,
                num_hidden_layers=net.num_layers,
                num_attention_heads=net.num_heads,
                intermediate_size=net.ffn_width or 4 * net.width,
                max_position_embeddings=net.max_len,
                hidden_dropout_prob=run.config.dropout_rate,
                attention_probs_dropout_prob=run.config.dropout_rate,
                num_labels=run.task.num_outputs,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        )
        optim = run.config.optim
        decayed, others = [], []
        for name, parameter in self.model.named_parameters():
            plain = name.endswith("bias") or "LayerNorm" in name
            (others if plain else decayed).append(parameter)
        groups = [
            {"params": decayed, "weight_decay": optim.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        betas = (optim.beta1, optim.beta2)
        self.optimizer = torch.optim.AdamW(
            groups, lr=optim.learning_rate, betas=betas, eps=optim.eps, fused=True
        )
        warmup = round(optim.warmup_rate * run.num_steps)
        self.schedule = transformers.get_linear_schedule_with_warmup(
            self.optimizer, warmup, run.num_steps
        )
        self.collate = transformers.DataCollatorWithPadding(self.tokenizer)
        self.train_rows = self.encode(run.splits.train)
        self.dev_rows = [
            row for records in run.splits.dev.values() if records for row in self.encode(records)
        ]

    def encode(self, records: Any) -> list[dict[str, Any]]:
        """Tokenises records; they are padded batch by batch."""
        made = self.tokenizer(*records.texts, truncation=True, max_length=self.run.config.max_len)
        labels = records.labels.tolist()
        return [{k: made[k][i] for k in made} | {"label": labels[i]} for i in range(len(labels))]

    def loader(self, rows: list[dict[str, Any]], size: int, shuffle: bool) -> Any:
        """Batches of rows, each padded to its longest."""
        import torch

        return torch.utils.data.DataLoader(rows, size, shuffle=shuffle, collate_fn=self.collate)

    def train(self, ids: np.ndarray) -> dict[str, int]:
        """Takes the steps that these examples make; returns real tokens and computed positions."""
        import torch

        self.model.train()
        rows = [self.train_rows[i] for i in ids]
        total, positions = torch.zeros(()), 0
        for batch in self.loader(rows, self.run.config.batch_size, shuffle=True):
            loss = self.model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(
                self.model.parameters(), self.run.config.optim.clip_norm or float("inf")
            )
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            total += loss.detach()
            positions += batch["input_ids"].numel()
        total.item()
        return {"tokens": sum(len(row["input_ids"]) for row in rows), "positions": positions}

    def evaluate(self) -> int:
        """Scores the dev sets; returns how many examples they have."""
        import torch

        self.model.eval()
        outputs = []
        with torch.no_grad():
            size = self.run.config.machine.eval_batch_size
            for batch in self.loader(self.dev_rows, size, shuffle=False):
                outputs.append(self.model(**batch).logits)
        return len(torch.cat(outputs).numpy())


# --- Measurements -------------------------------------------------------------------------------


def num_steps(run: Any, steps: int) -> int:
    """Batches whose examples are drawn at random: whole sorted stretches, or a whole epoch."""
    stretch = run.config.group_batches or 1
    wanted = -(-steps // stretch) * stretch
    return min(wanted, run.steps_per_epoch) if steps else run.steps_per_epoch


def stretches(run: Any, steps: int, repeats: int) -> list[range]:
    """The beginning of epochs 0, 1, ...: each epoch draws its examples anew."""
    epoch = run.steps_per_epoch
    return [range(k * epoch, k * epoch + steps) for k in range(repeats)]


def beside_peer(run: Any, steps: int, repeats: int, threads: int) -> dict[str, Any]:
    """Training and evaluation, ours and the peer's by turns."""
    left_out = without_peer()
    peer = None if left_out else Peer(run, threads)
    ours, parts = Ours(run, [0]), stretches(run, steps, repeats)
    (batches,) = ours.batches
    ids = [np.concatenate([batches.ids(step) for step in part]) for part in parts]
    ids = [chosen[chosen >= 0] for chosen in ids]
    compile_secs = ours.compile([step for part in parts for step in part])
    ours.evaluate()
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
        ours.train(part)
        found["train"].append(rates(len(chosen), started))
        if peer:
            gc.collect()
            started = clocks()
            made = peer.train(chosen)
            found["peer train"].append(rates(len(chosen), started))
            if made["tokens"] != tokens:
                raise SystemExit(f"the peer saw {made['tokens']} tokens, ours {tokens}")
            positions["peer"] += made["positions"]
        for name, side in (("evaluate", ours), ("peer evaluate", peer)):
            if side:
                started = clocks()
                found[name].append(rates(side.evaluate(), started))
    return {name: median(each) for name, each in found.items()} | {
        "compile_secs": compile_secs,
        "compiled_lengths": sorted({batches.length(step) for part in parts for step in part}),
        "tokens_per_example": positions["tokens"] / sum(map(len, ids)),
        "positions_per_token": positions["ours"] / positions["tokens"],
        "peer_positions_per_token": positions["peer"] / positions["tokens"] if peer else None,
        "peer": _peer_versions() if peer else None,
        "peer_left_out": left_out,
        "parameters": sum(leaf.size for leaf in _leaves(ours.state.params)),
        "peer_parameters": peer and sum(p.numel() for p in peer.model.parameters()),
    }


def together(run: Any, steps: int, repeats: int, seeds: int) -> dict[str, Any]:
    """Seeds in one program, and the same seeds one after another, by turns."""
    parts = stretches(run, steps, repeats)
    every = [step for part in parts for step in part]
    joined, alone = Ours(run, list(range(seeds))), [Ours(run, [seed]) for seed in range(seeds)]
    compile_secs = {"together": joined.compile(every)}
    compile_secs["one_by_one"] = sum(each.compile(every) for each in alone)
    found = collections.defaultdict(list)
    for part in parts:
        for each in (joined, *alone):
            each.length(part[0])  # an epoch is planned when it is first asked for
        count = sum(int((b.ids(step) >= 0).sum()) for b in joined.batches for step in part)
        started = clocks()
        joined.train(part)
        found["together"].append(rates(count, started))
        started = clocks()
        for each in alone:
            each.train(part)
        found["one_by_one"].append(rates(count, started))
    return {name: median(each) for name, each in found.items()} | {
        "seeds_together": seeds,
        "compile_secs": compile_secs,
        "parameters": sum(leaf.size for leaf in _leaves(alone[0].state.params)),
    }


def _leaves(tree: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(tree)


def _peer_versions() -> str:
    import torch
    import transformers

    return f"transformers {transformers.__version__}, torch {torch.__version__}"


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Prepares the task and measures what the arguments ask for."""
    import jax

    load = os.getloadavg()[0]
    environment.configure_jax(None, "float32")
    with tempfile.TemporaryDirectory() as folder:
        run = prepare(arguments, Path(folder))
        steps = num_steps(run, arguments.steps)
        net, opened = run.start.opened.config.net, run.start.opened
        found = {
            "task": run.task.name,
            "quick": arguments.quick,
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


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    share = found["steps"] / found["steps_per_epoch"]
    print(
        f"\n{found['task']}{' (invented)' if found['quick'] else ''}, {found['shape']},"
        f" {found['parameters']:,} parameters, embedding of {found['vocab_size']:,} rows, tokenizer"
        f" of {found['tokenizer']:,} pieces\n{found['device']}, {found['threads']} thread(s), load"
        f" {found['load']:.1f} at the start{BUSY if found['load'] > 0.5 else ''}\n"
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--data", default="../shared/data/glue", help="holds SST-2/, RTE/, ...")
    parser.add_argument("--shape", default="2x128x2", help="heads x width x layers")
    parser.add_argument("--run", help="a run of BERT that gives net and tokenizer")
    parser.add_argument("--steps", type=int, default=200, help="a repetition; 0: whole epochs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--seeds_together", type=int, default=1, help="so many seeds at once, without the peer"
    )
    parser.add_argument("--threads", type=int, default=2, help="of both, on CPU")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there too")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny net, invented rows and few steps"
    )
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.shape, arguments.run = QUICK["shape"], None
        arguments.steps, arguments.repeats = QUICK["steps"], QUICK["repeats"]
    return arguments


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    try:
        found = measure(arguments)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    report(found)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asked = parse()
    environment.keep_freed_memory()
    pin(asked.threads)
    main(asked)
