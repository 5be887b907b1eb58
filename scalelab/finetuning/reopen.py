"""Opens a finished fine-tuning, or an imported classifier, to apply it to new text."""

import dataclasses
import pathlib
from collections.abc import Sequence

from scalelab.config.finetuning import FinetuneConfig
from scalelab.finetuning import imported, kinds
from scalelab.finetuning.imported import ClassifierConfig
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import Params
from scalelab.finetuning.warm_start import WarmStart
from scalelab.records import json_files, run_files
from scalelab.records.run_files import RunRecord
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records
from scalelab.tasks.task import Splits, as_text, load_task, task_names
from scalelab.training import pretrained


@dataclasses.dataclass(frozen=True)
class Finetuned:
    """A finished fine-tuning, or an imported classifier."""

    task: Task
    start: WarmStart  # its own model and tokenizer
    config: FinetuneConfig
    params: Params

    def prepare(self, first: Records, cache_dir: str) -> TaskRun:
        """Returns it as a run on some texts; its `encode` reads more of them."""
        machine = dataclasses.replace(
            self.config.machine, cache_dir=cache_dir, fsdp_parallel=1, tensor_parallel=1
        )
        own = {"machine": machine, "batch_size": 1, "max_train_examples": None}
        config = dataclasses.replace(self.config, **own)
        return TaskRun(self.task, Splits(first, {}, {}), self.start, config, pathlib.Path())


def load(folder: pathlib.Path, columns: Sequence[str] = ()) -> Finetuned:
    """Opens a seed's run folder.

    Args:
      folder: the run folder; or the folder above, if it holds one seed.
      columns: the text columns of a classifier whose files do not name them.

    Raises:
      ValueError: it holds no finished fine-tuning; the message says what is missing.
    """
    seeds = sorted(path.parent for path in folder.glob("seed*/config.json"))
    if seeds and not (folder / "config.json").exists():
        if len(seeds) > 1:
            raise ValueError(f"{folder} holds {len(seeds)} seeds: give one, such as {seeds[0]}")
        folder = seeds[0]
    run = run_files.read_run(folder, metrics=False)
    if run.task is None or "labels" not in run.config:
        raise ValueError(
            f"{folder} is no fine-tuning, which predicts classes or scores; make one first:"
            f" python -m scalelab.eval TASK --init={folder} --workdir=DIR"
        )
    path = folder / "config.json"
    given = json_files.fill(ClassifierConfig, run.config, path)
    if given.kind not in (Task.kind, kinds.WORDS, "texts"):
        raise ValueError(
            f"{folder} has a head of kind {given.kind}, which predicts no class or score of a text;"
            " its predictions on the task's dev sets are in predictions*.tsv"
        )
    pretrained.check_tokenizer(run)
    config = json_files.fill(FinetuneConfig, run.config, path)
    if run.task == imported.TASK:
        config = dataclasses.replace(config, max_len=given.model.max_len, lm_weight=0.0)
    params = pretrained.load_trained(folder)
    opened, classifier = imported.load(run, params)
    start = WarmStart(
        opened, str(folder), lambda seed: params["body"], lambda seed: "", classifier=classifier
    )
    task = _task(run, given, columns)
    task = task if task.kind == given.kind else as_text(task)
    return Finetuned(task, start, config, params)


def _task(run: RunRecord, given: ClassifierConfig, columns: Sequence[str]) -> Task:
    """Returns the task that the run was trained on."""
    if given.task in task_names():
        return load_task(given.task)
    named = tuple((run.config.get("columns") or ())[:-1])
    texts = tuple(columns) or named
    if len(texts) not in (1, 2):
        raise ValueError(f"{run.folder} names no text columns: give --columns, one or two names")
    relation = "single" if len(texts) == 1 else given.relation or "entailment"
    return Task(
        name=given.task,
        title=given.task,
        relation=relation,
        metrics=("pearson",) if given.regression else ("accuracy",),
        labels=given.labels,
        columns=Columns(texts),
        tfds_texts=named or None,  # the names in prompts
        train=TaskSplit("train", ("train.tsv",)),
        dev_splits=(),
    )
