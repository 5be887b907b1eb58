"""Scores an ensemble: the average of the predictions of several fine-tunings of one task.

  python -m scalelab.eval.ensemble RUN RUN [RUN ...] [--csv=FILE]

Each RUN is the folder of one seed, such as runs/bert/tasks/sst2/seed0. Task, dev sets and labels
must be the same. An ensemble predicts the class with the largest mean probability, or the mean
score of a regression, after Raffel et al. 2020 (T5), 3.6, who average the scores before the
softmax. Models that answer in words (--as=text) give
one class the probability 1: their ensemble is a vote. The log loss, -log p of the right class in
nats, of an ensemble is never above the mean of its members'. Models that generate texts, such as
translations, write them anew, together: the probability of a token is the mean of theirs. Their
folders must have checkpoints; tokenizer, token that begins a text, max_len and beams must be the
same.
"""

import argparse
import dataclasses
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalelab.config import cli
from scalelab.lab import tables
from scalelab.lab.load import task_runs
from scalelab.lab.load.task_runs import SeedRun
from scalelab.records import predictions
from scalelab.records.predictions import Predictions
from scalelab.tasks import metrics

COLUMNS = ("task", "split", "metric", "mean", "best", "ensemble")


def open_runs(folders: Sequence[pathlib.Path]) -> tuple[str, list[SeedRun]]:
    """Reads the finished fine-tunings in the folders; returns their task and them.

    Raises:
      ValueError: one has no finished fine-tuning, tasks or metrics differ, or there are under two.
    """
    if len(folders) < 2:
        raise ValueError("an ensemble needs at least two runs")
    runs, kinds = [task_runs.read_seed(folder, 0) for folder in folders], []
    for run in runs:
        if not run.finished or run.result is None:
            why = run.failed or "no finished fine-tuning; expected a folder such as .../seed0"
            raise ValueError(f"{run.folder}: {why}")
        kinds.append((run.result.task, [*run.scores]))
        if kinds[-1] != kinds[0]:
            raise ValueError(
                f"{runs[0].folder} and {run.folder} have other tasks or metrics: {kinds[0]} against"
                f" {kinds[-1]}"
            )
    return str(kinds[0][0]), runs


def average(members: Sequence[Predictions]) -> Predictions:
    """Returns the ensemble's predictions; raises ValueError if packed classes are given."""
    first = members[0]
    if first.labels is None:
        scores = np.stack([member.predicted for member in members]).mean(axis=0, dtype=np.float64)
        return Predictions(first.texts, first.gold, scores.astype(np.float32))
    known = [m.probabilities for m in members if m.probabilities is not None]
    if len(known) < len(members):
        raise ValueError("packed predictions have no probabilities: give folders of runs")
    shares = np.stack(known).mean(axis=0, dtype=np.float64)
    best = shares.argmax(axis=1).astype(np.int32)
    return Predictions(first.texts, first.gold, best, first.labels, shares)


def write_texts(folders: Sequence[pathlib.Path], given: Predictions) -> Predictions:
    """Returns the texts that fine-tuned models write together.

    Args:
      folders: the folders of seeds, with checkpoints.
      given: predictions of one of them, for their texts and gold.

    Raises:
      ValueError: a folder has no model, or no texts as answers; or the tokenizers, the tokens that
        begin a text, the longest texts or the beams differ.
    """
    import jax  # with this come the models, which no other ensemble needs

    from scalelab.decode import stepper
    from scalelab.finetuning import reopen
    from scalelab.tasks.records import Records

    if given.texts is None:
        raise ValueError("packed predictions have no texts: give folders of runs")
    records, kinds = Records(given.texts, None, str(folders[0]), ""), []
    opened = [reopen.load(folder) for folder in folders]
    with tempfile.TemporaryDirectory() as cache_dir:
        runs = [own.prepare(records, cache_dir) for own in opened]
    for folder, run in zip(folders, runs, strict=True):
        net = run.learner.net
        beams = net.num_beams, net.length_penalty, net.longest
        kinds.append((run.tokenizer_digest, net.start, run.config.max_len, *beams))
        if kinds[-1] != kinds[0]:
            raise ValueError(
                f"{folders[0]} and {folder} cannot write together: their tokenizer, the token that"
                " begins a text, max_len, num_beams or length_penalty differ, or the tokens of the"
                f" longest answer ({runs[0].learner.net.longest} and {net.longest})"
            )
    params = [own.params for own in opened]

    @jax.jit
    def predict(params: list[Any], batch: dict[str, np.ndarray]) -> jax.Array:
        bodies = [
            (run.learner.net.body, own["body"]) for run, own in zip(runs, params, strict=True)
        ]
        members = [stepper.prepare(*body) for body in bodies]
        return runs[0].learner.net.decode(stepper.Ensemble(members), batch)

    first = runs[0]
    outputs = first.predict(lambda batch: predict(params, batch), first.train)
    found = first.kind.decode(first.task, records, first.train, outputs, first.reading)
    return dataclasses.replace(given, predicted=found.answers)


def log_loss(made: Predictions) -> float:
    """Returns the mean of -log p of the right class, in nats; infinite if a p is 0."""
    assert made.probabilities is not None
    right = made.probabilities[np.arange(len(made.gold)), made.gold]
    with np.errstate(divide="ignore"):
        return float(-np.log(right, dtype=np.float64).mean())


def score(folders: Sequence[pathlib.Path]) -> pd.DataFrame:
    """Returns the members' mean and best score and the ensemble's, for each split and metric."""
    (task, runs), rows = open_runs(folders), []
    splits = list(dict.fromkeys(split for split, _ in runs[0].scores))
    for place, split in enumerate(splits):
        name = f"predictions{f'-{split}' * (place > 0)}"
        paths = [run.folder / f"{name}.tsv" for run in runs]
        members = [predictions.read(p if p.exists() else p.with_suffix(".npz")) for p in paths]
        if different := [*filter(None, (task_runs.differ(members[0], m) for m in members[1:]))]:
            raise ValueError(f"the runs were scored on different data: {different[0]}")
        if runs[0].config.get("kind") == "texts":
            whole = write_texts(folders, members[0])
        elif members[0].gold.dtype.kind == "U":
            raise ValueError(f"{task}: tags and spans of a text have no average")
        else:
            whole = average(members)
        scored = [*members, whole]
        for metric in (metric for own, metric in runs[0].scores if own == split):
            values = [float(metrics.METRICS[metric](m.gold, m.predicted)) for m in scored]
            rows.append((task, split, metric, np.mean(values[:-1]), max(values[:-1]), values[-1]))
        if scored[-1].probabilities is not None:
            *own, together = map(log_loss, scored)
            rows.append((task, split, "log loss", np.mean(own), min(own), together))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.eval.ensemble", __doc__)
    made.add_argument("runs", metavar="RUN", nargs="+", type=pathlib.Path, help="folder of a seed")
    made.add_argument("--csv", metavar="FILE", type=pathlib.Path, help="write the table there")
    return made


def main(given: argparse.Namespace) -> None:
    """Prints the scores."""
    table = score(given.runs)
    if given.csv:
        table.to_csv(given.csv, index=False)
    cells = [[*row[:3], *(f"{value:.4f}" for value in row[3:])] for row in table.values.tolist()]
    print(tables.plain(COLUMNS, cells, 3), end="")


if __name__ == "__main__":
    cli.run(main, parser())
