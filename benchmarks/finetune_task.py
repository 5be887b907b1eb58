"""What benchmarks.finetune trains: a task as the engine prepares it, a net of random weights."""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from scalelab import systems
from scalelab.config import cli, files
from scalelab.config import pretraining as config_lib
from scalelab.config.finetuning import override, resolve
from scalelab.data import tokenizers
from scalelab.finetuning import run as finetune_run
from scalelab.finetuning import start as finetune_start
from scalelab.runs.pretrained import Pretrained
from scalelab.tasks import recipes
from scalelab.tasks import task as task_lib
from scalelab.tasks.records import Records

VOCAB_SIZE = 30_000  # rows of the embedding, as in pre-training
NUM_PIECES = 8_000  # of the tokenizer that is trained here
INVENTED_SIZES = {"vocab_size": 97, "pieces": 40}
QUICK_FIELDS = {"batch_size": 8, "group_batches": 2, "machine.eval_batch_size": 8}
WORDS = "at by do go if in me no or up".split()


def prepare(arguments: argparse.Namespace, folder: Path) -> Any:
    """The task as the engine prepares it: a finetuning.run.TaskRun."""
    task = task_lib.load_task(arguments.task)
    splits = read(task, arguments)
    if arguments.run:
        start = finetune_start.open_start(arguments.run)
        if start.opened.config.system != "bert":
            raise cli.Stopped(f"--run={arguments.run}: the peer is BERT; give a run of system=bert")
    else:
        start = random_start(splits, arguments, folder)
    values = config_values("finetune", f"task={task.name}")
    fields = {"machine.cache_dir": str(folder / "cache"), "machine.compile_cache_dir": None}
    fields |= QUICK_FIELDS if arguments.quick else {}
    config = resolve(
        override(values, dict(recipes.get("thesis").tasks.get(task.name, {})) | fields)
    )
    return finetune_run.TaskRun(task, splits, start, config, folder / "run")


def config_values(name: str, arguments: str = "") -> dict[str, Any]:
    """What configs/<name>.py gives."""
    return files.load(files.FOLDER / f"{name}.py").get_config(arguments).to_dict()


def invented(task: Any, count: int, seed: int) -> Any:
    """Records of a task in words that mean nothing."""
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
    """The task's splits; invented ones where no folder has data."""
    if arguments.data is not None:
        return task_lib.load(task, arguments.data, tests=False)
    dev = {split.name: None for split in task.dev_splits}
    dev[task.dev_splits[0].name] = invented(task, 20, 1)
    return task_lib.Splits(invented(task, 36, 0), dev, {})


def random_start(splits: Any, arguments: argparse.Namespace, folder: Path) -> Any:
    """A net of random parameters, with a tokenizer trained on the task's training texts."""
    values = config_values("pretrain", f"system=bert,shape={arguments.shape}")
    size, pieces = VOCAB_SIZE, NUM_PIECES
    if arguments.data is None:
        size, pieces = INVENTED_SIZES["vocab_size"], INVENTED_SIZES["pieces"]
    values["tokenizer"]["vocab_size"] = size
    values["net"]["dtype"] = getattr(arguments, "dtype", "float32")
    config, system = config_lib.resolve(values), systems.load("bert")
    (folder / "tokenizer").mkdir()
    spec = tokenizers.TokenizerSpec(
        "wordpiece", pieces, config.tokenizer.lowercase, system.SPECIAL_TOKENS, *system.FRAME
    )
    texts = [text for column in splits.train.texts for text in column]
    tokenizers.train(spec, texts, folder / "tokenizer")
    tokenizer = tokenizers.Tokenizer.load(folder / "tokenizer")
    opened = Pretrained(folder, config, system, tokenizer, params=None, step=0, finished=True)
    return finetune_start.Start(opened, "none", None, "none")
