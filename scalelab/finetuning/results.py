"""The results of a fine-tuned seed: scores, predictions, result.json, submission files."""

import collections
import dataclasses
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.config.finetuning import FinetuneConfig, override, resolve, settings, with_head_kind
from scalelab.data.tokenizers import digest
from scalelab.finetuning import prompts
from scalelab.finetuning.kinds import Decoded
from scalelab.finetuning.plan import read_grid
from scalelab.finetuning.progress import Progress
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import Params
from scalelab.helpers.files import write_text
from scalelab.records import plots, predictions, run_files, run_folder
from scalelab.records.run_files import COMPLETED, FAILED, TaskResult
from scalelab.resources import flops, host
from scalelab.tasks import metrics, recipes, submission, text_counts
from scalelab.tasks import task as task_lib
from scalelab.tasks.examples import TaskExamples
from scalelab.tasks.task import Task
from scalelab.training import pretrained

Outputs = Mapping[str, np.ndarray]  # dev split -> the head's outputs [n, ..., C]
Scores = dict[str, dict[str, float | None]]  # dev split -> metric -> value

# --- Scores ----------------


def decode(run: TaskRun, split: str, outputs: np.ndarray) -> Decoded:
    """Returns the answers of a split's outputs, one for each of its records.

    Args:
      run: the task's runs.
      split: name of a dev or test split.
      outputs: [n, ..., C], from `TaskRun.predict`.
    """
    named = {**run.splits.dev, **run.splits.test}, {**run.dev, **run.test}
    records, examples = (by_split[split] for by_split in named)
    return run.kind.decode(run.task, records, examples, outputs, run.reading)


def measure(run: TaskRun, outputs: Outputs) -> Scores:
    """Computes the metrics on each dev split; None if undefined or if an output is not finite."""
    measured: Scores = {}
    for split, values in outputs.items():
        gold = run.splits.dev[split]
        assert gold is not None
        answers = decode(run, split, values).answers if np.isfinite(values).all() else None
        measured[split] = {
            name: None
            if answers is None or metrics.undefined(name, gold.labels)
            else metrics.METRICS[name](gold.labels, answers)
            for name in run.task.metrics
        }
    return measured


def undefined(run: TaskRun) -> dict[str, dict[str, str]]:
    """Returns the undefined metrics: dev split -> metric -> reason, found in the gold labels."""
    found = {
        split: {m: why for m in run.task.metrics if (why := metrics.undefined(m, gold.labels))}
        for split, gold in run.splits.dev.items()
        if gold is not None
    }
    return {split: own for split, own in found.items() if own}


def main_score(task: Task, dev: Scores) -> float:
    """Returns the main metric on the main split; -inf where it is None."""
    value = next(iter(dev.values()))[task.metrics[0]]
    return -np.inf if value is None else value


def dev_outputs(run: TaskRun, params: Params) -> Outputs:
    """Computes the head's outputs on each dev split with parameters {"body", "head"}."""
    return {split: run.predict_with(params, own) for split, own in run.dev_there.items()}


# --- Files ----------------


def write(run: TaskRun, seed: int, progress: Progress, outputs: Outputs, params: Params) -> None:
    """Writes predictions, pictures and, last, result.json of a seed.

    Args:
      run: the task's runs.
      seed: the seed.
      progress: of this seed.
      outputs: split -> [n, ..., C], of the best step; the main dev split first.
      params: parameters of the best step.
    """
    task, opened, folder = run.task, run.start.opened, run.folder(seed)
    write_predictions(run, folder, outputs)
    title = f"{task.title} seed {seed}, {opened.config.system}"
    plots.draw_curves(folder, title, "squared error" if task.regression else "nats")
    main, values = next(iter(outputs.items()))
    assert (gold := run.splits.dev[main]) is not None
    train_loss = progress.loss(run.steps_per_epoch)
    find_chance = getattr(run.kind, "chance_loss", lambda train: None)
    degenerate = progress.failed or metrics.degenerate(
        gold.labels,
        decode(run, main, values).answers,
        train_loss=train_loss,
        chance=find_chance(run.train),
        regression=task.regression,
    )
    clocks, kept = progress.clocks, run.folder(seed) / "tokenizer"
    read = {"train": run.train, **run.dev_there}
    decoded = {split: decode(run, split, found) for split, found in outputs.items()}
    decoded = {split: made for split, made in decoded.items() if made.invalid is not None}
    result = TaskResult(
        status=FAILED if progress.failed else COMPLETED,
        task=task.name,
        system=opened.config.system,
        shape=opened.config.model.shape,
        n_model=opened.n_model,
        params=flops.count_parameters(params),
        seed=seed,
        pretrain_seed=opened.config.seed,
        recipe=run.config.recipe,
        init=run.start.label,
        init_digest=run.start.digest(seed),
        mnli_first=run.start.mnli_first,
        steps=clocks.steps,
        tokens=clocks.tokens,
        flops=clocks.flops,
        seconds=clocks.secs,
        tokenizer_digest=digest(kept) if kept.is_dir() else None,
        eval=measure(run, outputs),
        undefined=undefined(run),
        best=None if progress.best is None else progress.evals[progress.best],
        early_stopping=run.config.patience is not None,
        stopped=progress.stopped,
        train_loss=train_loss,
        degenerate=degenerate,
        remarks=(*remarks(run), *describe_invalid(run, decoded)),
        truncated={name: e.num_truncated for name, e in read.items()},
        invalid={split: len(made.invalid or {}) for split, made in decoded.items()},
        data=run.splits.digests,
        settings=settings(run.config),
        chosen=read_grid(run.workdir).chosen,
        peak_memory_bytes=host.peak_memory_bytes(),
    )
    run_files.write_result(folder, result)


def write_predictions(run: TaskRun, folder: pathlib.Path, outputs: Outputs) -> None:
    """Writes predictions*.tsv and draws predictions*.png, one of each a dev split."""
    task = run.task
    for place, (split, values) in enumerate(outputs.items()):
        given = run.splits.dev[split]
        assert given is not None and given.labels is not None
        ending = f"-{split}" if place else ""
        answers, table, _ = decode(run, split, values)
        made = (answers[:, None], None) if table is None else (table, task.labels)
        lines = predictions.lines(given.texts, *made, given.labels)
        write_text(folder / f"predictions{ending}.tsv", "".join(lines))
        if answers.dtype.kind != "U":  # texts have no picture
            plots.draw_predictions(
                folder / f"predictions{ending}.png",
                gold=given.labels,
                predicted=answers,
                labels=task.labels,
                title=f"{task.title} {split}, {run.start.opened.config.system}",
            )


def evaluate_again(run: TaskRun, seed: int) -> Scores:
    """Evaluates a finished seed's parameters and writes its predictions anew.

    Raises:
      ValueError: the seed is not finished, or has another config or other data.
    """
    params = pretrained.load_trained(run.folder(seed))
    run.claim(seed)
    outputs = dev_outputs(run, params)
    write_predictions(run, run.folder(seed), outputs)
    return measure(run, outputs)


def score_import(run: TaskRun) -> None:
    """Scores an imported classifier as it is; writes the files of a fine-tuning of no steps.

    Raises:
      ValueError: its classes do not fit the task's, or the folder holds another run.
    """
    if run.head is None:
        raise ValueError(
            "--eval_only scores the classifier as it was imported, and it does not fit:"
            f" {run.head_note}; without --eval_only it is fine-tuned, with a new head"
        )
    run.claim(0)
    run_folder.write_description(run.folder(0), run.describe(0))
    params = run.first_params(0)
    write(run, 0, Progress(), dev_outputs(run, params), params)
    print(run.head_note)


def submit(run: TaskRun, seeds: tuple[int, ...]) -> None:
    """Predicts the test sets with the seed that is best on dev; writes the leaderboard's files.

    If every seed has failed, nothing is predicted, and files of an earlier start are removed.
    """
    results = {seed: run.result(seed) for seed in seeds}
    sound = [seed for seed in seeds if results[seed]["status"] == COMPLETED]
    if not sound:
        shutil.rmtree(run.workdir / "submission", ignore_errors=True)
        print(f"{run.task.title}: every seed has failed; the test sets are not predicted")
        return
    seed = max(sound, key=lambda s: main_score(run.task, results[s]["eval"]))
    if why := results[seed]["degenerate"]:
        print(f"{run.task.title}: seed {seed}, the best on dev, is degenerate: {why}")
    params = (
        pretrained.load_trained(run.folder(seed)) if run.config.epochs else run.first_params(seed)
    )
    found = {
        split: decode(run, split, run.predict_with(params, examples)).answers
        for split, examples in run.test.items()
        if examples is not None
    }
    written = submission.write(run.task, run.splits, found, run.workdir / "submission")
    absent = ", ".join(name for name, examples in run.test.items() if examples is None)
    print(
        f"{run.task.title}: wrote {', '.join(map(str, written)) or 'no file'} from seed {seed}"
        + f"; test sets not found: {absent}" * bool(absent)
    )


# --- Remarks ----------------


def describe(run: TaskRun) -> str:
    """Describes a run at its start: sizes, initial weights, recipe."""
    splits = {"train": run.train, **run.dev, **run.test}
    sizes = ", ".join(f"{name} {len(e):,}" for name, e in splits.items() if e is not None)
    line = (
        f"{run.task.title}: {sizes}; {run.num_steps:,} steps of batch {run.config.batch_size},"
        f" recipe {run.config.recipe}, from {run.start.label}"
    )
    return "\n".join(filter(None, [line, run.head_note]))


def remarks(run: TaskRun) -> list[str]:
    """Lists what a table must say of a run's data, initial weights and declared differences."""
    title, config = run.task.title, run.config
    lines = [*task_lib.remarks(run.task, run.splits), *run.start.remarks]
    lines += [run.head_note] if run.head_note else []
    lines += [
        f"{title}: {metric} is undefined on {split}: {why}"
        for split, own in undefined(run).items()
        for metric, why in own.items()
    ]
    if not config.epochs:
        lines.append(f"{title} scored as it was imported, without fine-tuning")
    elif own := beyond_recipe(config, run.start.opened.system, run.task.name, run.kind.HEAD):
        fields = ", ".join(f"{k} {'off' if v is None else v}" for k, v in own.items())
        lines.append(f"{title}: set beyond recipe {config.recipe}: {fields}")
    read = {"train": run.train, **run.dev_there}
    cut = _count_cut(read, {name: made.num_truncated for name, made in read.items()})
    texts = run.splits.dev.values() if run.task.kind == "texts" else ()
    golds = [gold for own in texts if own and own.labels is not None for gold in own.labels]
    lines += [f"{title}: {name} by {how}" for name in run.task.metrics
              if (how := text_counts.signature(name, golds))]  # fmt: skip
    rows = [made.rows.arrays["tokens"] for made in read.values()]
    if unknown := sum(map(run.tokenizer.count_unknown, rows)):
        system = run.start.opened.config.system
        count = f"{unknown:,} of {sum(map(len, rows)):,} tokens, prompts included"
        lines.append(f"{title}: {count}, are unknown to the tokenizer of {system}")
    if cut:
        what = f"{title}: texts cut to {config.max_len} tokens"
        lines.append(f"{what}: {run.start.opened.config.system} {cut}")
    if cut := _count_cut(read, {name: _count_endless(run, made) for name, made in read.items()}):
        lines.append(f"{title}: answers cut to {run.task.answer_len} tokens: {cut}")
    return lines


def _count_cut(read: Mapping[str, TaskExamples], counts: Mapping[str, int]) -> str:
    """Describes how many of each split's examples were cut; "": none."""
    found = [(name, count) for name, count in counts.items() if count]
    return ", ".join(f"{count:,} of {len(read[name]):,} ({name})" for name, count in found)


def _count_endless(run: TaskRun, made: TaskExamples) -> int:
    """Counts the targets that lost their end, which `texts.encode` cut."""
    if run.task.kind != "texts" or made.labels is None:
        return 0
    last = made.labels[:, -1]
    return int(((last >= 0) & (last != prompts.end_token(run.task, run.reading))).sum())


def describe_invalid(run: TaskRun, decoded: Mapping[str, Decoded]) -> list[str]:
    """Returns the remarks on generated answers, given those of each split.

    They count the invalid ones, name the three most frequent of them, and give the accuracy that
    counts them as wrong, as T5 does.
    """
    title, texts, counts, lines = run.task.title, run.task.kind == "texts", [], []
    for split, made in decoded.items():
        invalid = made.invalid or {}
        named = collections.Counter(invalid.values()).most_common(3)
        shown = ", ".join(f"{text!r} {count:,}" for text, count in named if not texts)
        counts.append(
            f"{len(invalid):,} of {len(run.dev_there[split]):,} ({split}{shown and ': ' + shown})"
        )
        gold = run.splits.dev[split]
        if invalid and gold is not None and "accuracy" in run.task.metrics and not texts:
            wrong = made.answers.copy()
            wrong[[*invalid]] = -1
            value = metrics.METRICS["accuracy"](gold.labels, wrong)
            lines.append(f"{title}: accuracy with invalid answers as wrong: {value:.4f} ({split})")
    what = "as text; answers that were no label, replaced by the best of the labels"
    what = "empty answers" if texts else what
    return [f"{title} {what}: {', '.join(counts)}", *lines] if counts else []


def beyond_recipe(
    config: FinetuneConfig, system: object, task: str, head: str = "double"
) -> dict[str, Any]:
    """Returns the fields that differ from the recipe's for a task; not those of its grid.

    Args:
      config: config of the fine-tuning.
      system: module of the model's system.
      task: name of the task.
      head: the task kind's HEAD.
    """
    recipe = recipes.get(config.recipe)
    own = {**recipe.fields, **recipes.own_fields(system, recipe, task)}
    plain = override(dataclasses.asdict(FinetuneConfig()), own)
    plain = settings(resolve(with_head_kind(plain, head)))
    grid = {name.removeprefix("optim.") for name in recipe.grid}
    return {
        name: value
        for name, value in settings(config).items()
        if name not in grid and plain[name] != value
    }
