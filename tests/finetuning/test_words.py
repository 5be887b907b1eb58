"""Label words that a net generates, and class heads of a net with a source: planted tasks, losses
and decoding by hand.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import guests
import in_process
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from test_finetune import config
from test_finetune import one_bucket as one_bucket

from scalelab import finetune, systems
from scalelab.eval import glue_table, program
from scalelab.finetuning import kinds, warm_start
from scalelab.finetuning.kinds import words
from scalelab.finetuning.run import TaskRun
from scalelab.objectives import Pass
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records
from scalelab.tasks.task import Splits, as_text, load_task

Prepare = Callable[..., TaskRun]
WORDS = "at do go if me no up".split()
LABELS = ("go", "tree", "no up", "during")  # some are several pieces
FIRST = Task(
    name="first", title="First", relation="single", metrics=("accuracy",), labels=LABELS,
    columns=Columns(("text",)), train=TaskSplit("train", ("train.tsv",)),
    dev_splits=(TaskSplit("dev", ("dev.tsv",)),),
)  # fmt: skip
FORMS = {"text": None, "both": "both", "source": "source"}


@pytest.fixture(autouse=True, scope="module")
def translator() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        guests.add(patch, "translator")
        yield


def planted(n: int, seed: int) -> Records:
    """Texts that begin with their label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(len(LABELS), size=n).astype(np.int32)
    texts = [f"{LABELS[k]} {' '.join(rng.choice(WORDS, rng.integers(1, 4)))}" for k in labels]
    return Records((texts,), labels, "invented", str(seed))


@pytest.fixture
def prepare(pretrained_runs, cache_dir, tmp_path, monkeypatch) -> Prepare:
    """prepare(system, form, **fields of the config) -> TaskRun of FIRST, or of `task`."""

    def make(system: str, form: str, *, task: Task = FIRST, num_rows: int = 96,
             folder: str = "task", **fields: Any) -> TaskRun:  # fmt: skip
        module = systems.load(system)
        if form == "text":
            task = as_text(task)
        elif module.HAS_SOURCE:
            adaptation = dataclasses.replace(module.ADAPTATION, source=FORMS[form])
            monkeypatch.setattr(module, "ADAPTATION", adaptation)
        small = {
            "epochs": 40.0, "batch_size": 16, "dropout_rate": 0.0, "optim.learning_rate": 2e-2,
            "head.kind": kinds.load(task.kind).HEAD, "head.dropout_rate": 0.0,
            "eval_every_epochs": 200.0, "machine.tracker": None,
        }  # fmt: skip
        start = warm_start.open_start(str(pretrained_runs(system)))
        splits = Splits(planted(num_rows, 0), {"dev": planted(41, 1)}, {})
        own = config(cache_dir, **(small | fields))
        return TaskRun(task, splits, start, own, tmp_path / folder)

    return make


CASES = [("gpt2", "text"), ("translator", "text"), ("translator", "both"), ("translator", "source")]


@pytest.mark.parametrize(("system", "form"), CASES)
def test_a_planted_task_is_learnt(prepare: Prepare, system: str, form: str) -> None:
    run = prepare(system, form)
    finetune.train([run], 0, run.workdir)
    result = run.result(0)
    print(result)
    assert result["eval"]["dev"]["accuracy"] > 0.95
