"""BabyLM: the zero-shot tasks of the BabyLM Challenge 2026, by its rules and by fairer ones.

  python -m scalelab.eval.babylm --run=RUN --data=DIR --workdir=DIR
      [--rows=fast --step=N --revision=chck_1M]

DIR is the challenge's folder `full_eval`. DIR or DIR/eval holds blimp_filtered/, entity_tracking/,
wug_adj_nominalization/, reading/reading_data.csv and, optionally, supplement_filtered/ and
wug_past_tense/. Without blimp_filtered/, BLiMP itself is read from DIR/blimp/ or DIR/../blimp/, and
DIR/babylm_2025_filtered_rows.json lists the rows that count. --rows=fast needs this layout and
DIR/babylm_2025_fast_rows.json.

| column | equal scores | dtype | surprisal of a word |
|---|---|---|---|
| official | the right text wins | the run's | of the word without the blank before it |
| fair | the texts share the point | float32 | of the word in its sentence |

A left-to-right model without a start token does not score the first token. Accuracies are means
over paradigms. Entity tracking scores only the continuations; items with an option "nothing" are
left out, as in the pipeline of 2026. The score of wugs is Spearman's correlation between the
preferences of the model and of people. scalelab/eval/reading_times.py scores reading. Intervals are
95%.

result.json and predictions.tsv hold the minimal pairs (BLiMP and its supplement). The predictions
of each completely scored task are in WORKDIR/seed0/results/RUN/REVISION, in the layout for
`strict/evaluation_pipeline/collate_preds.py` of github.com/babylm-org/babylm-eval. For the
revisions chck_1M, chck_2M, ... that program reads only the fast evaluation. EWoK, COMPS, Global
PIQA and age of acquisition are not measured.
"""

import collections
import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from scalelab.eval import items, pairs, reading_times, suites
from scalelab.eval.evaluation import Asked, Evaluation, Measured
from scalelab.eval.items import Item
from scalelab.lab.compare import estimates
from scalelab.tasks import data_files
from scalelab.tasks.metrics import spearman

if TYPE_CHECKING:
    from scalelab.training.pretrained import Pretrained

BACKENDS = {"next": "causal", "masked": "mlm"}  # our name -> the pipeline's name


class Kind(NamedTuple):
    """A task that scores texts."""

    title: str
    data: str  # folder of its files
    full: str  # folder of its predictions
    fast: str | None  # the same for --rows=fast; None: the fast evaluation has other items


KINDS = {
    "blimp": Kind("BLiMP", "blimp_filtered", "blimp/blimp_filtered", "blimp/blimp_fast"),
    "supplement": Kind(
        "BLiMP supplement", "supplement_filtered", "blimp/supplement_filtered", None
    ),
    "entity_tracking": Kind(
        "entity tracking", "entity_tracking", "entity_tracking/entity_tracking",
        "entity_tracking/entity_tracking_fast",
    ),
    "wug_adj": Kind(
        "wug adjectives", "wug_adj_nominalization", *["wug_adj/wug_adj_nominalization"] * 2
    ),
    "wug_past": Kind("wug past tense", "wug_past_tense", *["wug_past/wug_past_tense"] * 2),
}  # fmt: skip
PAIRS, OPTIONAL = ("blimp", "supplement"), ("supplement", "wug_past")
READING = "reading/reading_data.csv"
COLUMNS = ["level", "group", "metric", "items", "official", "fair", "low", "high", "by_mean"]


class Question(NamedTuple):
    """An item of a task; its first text is the right one, or for wugs the one that people rated."""

    task: str
    item: Item
    answers: tuple[str, ...]  # the texts as in the prediction files
    ratio: float | None = None  # wugs: share of people that prefer the first text
    fast: bool = False  # whether it is in the fast evaluation


# --- Files ----------------


def read(folder: pathlib.Path) -> list[Any]:
    """Reads all questions, then the rows of the reading times.

    Raises:
      ValueError: a file is missing or malformed; the message names it.
    """
    base = folder / "eval" if (folder / "eval").is_dir() else folder
    found: list[Any] = []
    for task, kind in KINDS.items():
        paths = sorted((base / kind.data).glob("*.jsonl"))
        if task == "blimp" and not paths:
            found += _read_blimp(folder)
        elif paths or task in OPTIONAL:
            found += [question for path in paths for question in _read_file(task, path)]
        else:
            raise ValueError(f"expected the folder {base / kind.data} with .jsonl files in it")
    for number, row in data_files.read_table(
        path := base / READING, reading_times.COLUMNS, ",", quoted=True
    ):
        with data_files.place(path, number):
            reading_times.check(row)
            found.append({name: row[name] for name in reading_times.COLUMNS})
    return found


def _read_file(task: str, path: pathlib.Path) -> Iterator[Question]:
    """Yields the questions of a file in the pipeline's layout."""
    title = KINDS[task].title
    if task in PAIRS:
        for _, row in data_files.read_objects(path, suites.BLIMP_KEYS[:2]):
            texts = row["sentence_good"], row["sentence_bad"]
            yield Question(task, Item((str(row.get("UID", path.stem)), title), texts, 0), texts)
    elif task == "entity_tracking":
        keys = ("options", "numops")
        for number, row in data_files.read_objects(path, ("input_prefix",), keys):
            with data_files.place(path, number, "a list of texts in 'options'"):
                prefix, options = row["input_prefix"], tuple(row["options"])
                texts = tuple(prefix + option for option in options)
                if len(texts) < 2:
                    raise ValueError(f"expected several options, found {options}")
                if not any("nothing" in option for option in options):
                    spans = tuple(((len(prefix), len(text)),) for text in texts)
                    item = Item((f"{path.stem}_{row['numops']}_ops", title), texts, 0, spans)
                    yield Question(task, item, options, fast=path.stem == "regular")
    else:
        for number, row in data_files.read_objects(path, ("sentences",), ("ratio",)):
            with data_files.place(path, number):
                texts = tuple(row["sentences"].split("\t"))
                if len(texts) != 2:
                    raise ValueError(f"expected two sentences joined by a tab, found {texts}")
                item, ratio = Item((task, title), texts, 0), float(row["ratio"])
                yield Question(task, item, texts, ratio, fast=True)


def _read_blimp(folder: pathlib.Path) -> list[Question]:
    """Reads the rows of BLiMP that babylm_2025_filtered_rows.json lists."""
    places = folder / "blimp", folder.resolve().parent / "blimp"
    place = next((path for path in places if path.is_dir()), None)
    paths = [folder / f"babylm_2025_{name}_rows.json" for name in ("filtered", "fast")]
    if place is None or not paths[0].is_file():
        raise ValueError(
            f"expected {KINDS['blimp'].data}/*.jsonl in {folder}, or {paths[0].name} there and"
            f" BLiMP in {places[0]} or {places[1]}"
        )
    found: dict[str, list[Item]] = {}
    for item in suites.read_blimp(place):
        uid = item.groups[0]
        found.setdefault(uid, []).append(item._replace(groups=(uid, KINDS["blimp"].title)))
    full, fast = (data_files.read_json(path) if path.is_file() else {} for path in paths)
    with data_files.place(paths[0], expected=f"the rows of each paradigm of {place}"):
        return [
            Question("blimp", item := found[uid][k], item.texts, fast=k in fast.get(uid, ()))
            for uid, rows in full.items()
            for k in rows
        ]


# --- Measuring ----------------


def measure(opened: "Pretrained", asked_items: Sequence[Any], asked: Asked) -> Measured:
    """Measures a model on all tasks.

    Raises:
      ValueError: the model predicts no tokens, can score no pair of BLiMP, or an option is wrong.
    """
    from scalelab.eval import sentence_scores

    if opened.predicts is None:
        raise ValueError(f"{opened.path} predicts no tokens: expected a causal or a masked model")
    rule = sentence_scores.BY_PREDICTION[opened.predicts][0]
    chosen = _choose([q for q in asked_items if isinstance(q, Question)], asked.options)
    asked_texts = [q.item for q in chosen]
    fits = pairs.fitting(opened, asked_texts, pairs.encode(opened, asked_texts), rule)
    questions = list(itertools.compress(chosen, fits))
    scored, all_asked = (collections.Counter(q.task for q in part) for part in (questions, chosen))
    if not scored["blimp"]:
        raise ValueError(f"{opened.path} can score no pair of BLiMP")
    left_out, most = all_asked - scored, asked.options["per_group"]
    net = dataclasses.replace(opened.config.model, dtype="float32")
    exact = dataclasses.replace(opened, config=dataclasses.replace(opened.config, model=net))
    words = [row for row in asked_items if not isinstance(row, Question)]
    readings = [
        reading_times.read(run, words, official=official, tensor_parallel=asked.tensor_parallel)
        for run, official in ((opened, True), (exact, False))
    ]
    asked_texts = [q.item for q in questions]
    scores = [pairs.score(opened, asked_texts, rule, asked)] * 2
    if net != opened.config.model:
        partial = asked.partial.with_stem(f"{asked.partial.stem}-float32")
        scores[1] = pairs.score(
            exact, asked_texts, rule, dataclasses.replace(asked, partial=partial)
        )
        partial.unlink(missing_ok=True)
    rows = [*_tabulate(questions, *scores), *_tabulate_reading(*readings)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    whole = () if most else tuple(scored.keys() - left_out.keys())
    made = _predict(questions, scores[0][0], whole, fast=asked.options["rows"] == "fast")
    both = zip(readings[0]["surprisal"], readings[0]["prev_surprisal"], strict=True)
    read = [{"id": k, "pred": now, "prev_pred": before} for k, (now, before) in enumerate(both)]
    made["reading"] = {"reading": {"predictions": read}}
    revision = f"results/{opened.path.resolve().stem}/{asked.options['revision']}"
    folder = f"{revision}/zero_shot/{BACKENDS[opened.predicts]}"
    ours = [k for k, question in enumerate(questions) if question.task in PAIRS]
    own = [questions[k].item for k in ours]
    answers = items.judge(own, *(values[ours, :2] for values in scores[1]))
    return Measured(
        texts=[*zip(*(items.turn(item.texts, k) for k, item in enumerate(own)), strict=True)],
        gold=answers.gold,
        outputs=answers.outputs,
        labels=["1", "2"],
        recipe=rule,
        scores={"accuracy": float(answers.right.mean())},
        table=table,
        printed=_describe(table, rule, answers.right),
        notes=tuple(_note(chosen, questions, most, readings)),
        files={f"{folder}/{name}/predictions.json": content for name, content in made.items()},
    )


def _note(
    chosen: Sequence[Question],
    scored: Sequence[Question],
    most: int,
    readings: Sequence[Mapping[str, np.ndarray]],
) -> Iterator[str]:
    """Yields sentences about the items left out of each task."""
    for task, kind in KINDS.items():
        uids, kept = (
            [q.item.groups[0] for q in part if q.task == task] for part in (chosen, scored)
        )
        if num := len(uids) - len(kept):
            left_out = items.LEFT_OUT.format(num, len(uids))
            yield f"{kind.title}: {left_out}; so it has no predictions.json"
        if empty := sorted({*uids} - {*kept}):
            yield f"{kind.title}: the mean is without {', '.join(empty)}: no item fits"
        if not kept:
            yield f"{kind.title}: nothing to score"
    missing = np.isnan([columns["surprisal"] for columns in readings]).any(axis=0)
    if missing.any():
        yield f"reading: {missing.sum():,} of {missing.size:,} words are left out: too long"
    if most:
        yield f"only the first {most:,} items of each paradigm; predictions.json for reading alone"


def _choose(questions: Sequence[Question], options: Mapping[str, Any]) -> list[Question]:
    """Returns the questions that --rows and --per_group select."""
    if options["rows"] not in ("full", "fast"):
        raise ValueError(f"--rows={options['rows']}: expected full or fast")
    if options["rows"] == "fast":
        questions = [q for q in questions if q.fast]
        if not any(q.task == "blimp" for q in questions):
            raise ValueError(
                "--rows=fast: expected BLiMP itself and babylm_2025_fast_rows.json in --data"
            )
    nth: collections.defaultdict[str, Iterator[int]] = collections.defaultdict(itertools.count)
    most = options["per_group"] or len(questions)
    return [q for q in questions if next(nth[q.item.groups[0]]) < most]


# --- Tables and files ----------------


def _tabulate(
    questions: Sequence[Question],
    official: tuple[np.ndarray, np.ndarray],
    fair: tuple[np.ndarray, np.ndarray],
) -> list[list[Any]]:
    """Makes the table rows of the tasks that score texts.

    Args:
      questions: the scored questions.
      official: sums of log-probabilities and numbers of tokens, [n, C] each.
      fair: the same in float32.
    """
    means = fair[0] / np.maximum(fair[1], 1)
    ratios = np.array([np.nan if q.ratio is None else q.ratio for q in questions])
    ours = [k for k, question in enumerate(questions) if question.ratio is None]
    asked = [questions[k].item for k in ours]
    wins, _ = items.split_ties(asked, official[0][ours])
    shares = [items.split_ties(asked, values[ours])[1] for values in (fair[0], means)]
    made = items.table(asked, *shares).rename(columns={"accuracy": "fair"})
    made["official"], made["metric"] = items.table(asked, wins, wins)["accuracy"], "accuracy"
    rows = made[made["level"].notna()].astype({"level": int})[COLUMNS].to_numpy().tolist()
    for task in sorted({q.task for q in questions if q.ratio is not None}):
        own = np.array([q.task == task for q in questions])
        gaps = [values[own, 0] - values[own, 1] for values in (fair[0], means)]
        found = [spearman(ratios[own], x) for x in (_preference(official[0][own]), *gaps)]
        low, high = _rank_interval(found[1], own.sum())
        title = KINDS[task].title
        rows.append([1, title, "rho", own.sum(), found[0], found[1], low, high, found[2]])
    return rows


def _preference(sums: np.ndarray) -> np.ndarray:
    """Returns the probability of the first of two texts: [n] float32."""
    return special.expit((sums[:, 0] - sums[:, 1]).astype(np.float32))


def _rank_interval(rho: float, num: int) -> tuple[float, float]:
    """Returns the 95% interval of a rank correlation (Bonett and Wright 2000)."""
    center = np.arctanh(np.clip(rho, -1 + 1e-9, 1 - 1e-9))
    half = special.ndtri(estimates.UPPER) * np.sqrt((1 + rho**2 / 2) / max(num - 3, 1))
    return float(np.tanh(center - half)), float(np.tanh(center + half))


def _tabulate_reading(
    official: Mapping[str, np.ndarray], fair: Mapping[str, np.ndarray]
) -> list[list[Any]]:
    """Makes the table rows of the reading times."""
    titles = "reading: eye tracking", "reading: self-paced"
    scores = [reading_times.scores(columns) for columns in (official, fair)]
    num = int(np.isfinite(fair["surprisal"]).sum())
    made = zip(titles, *scores, reading_times.intervals(fair), strict=True)
    return [[1, title, "variance", num, a, b, *ends, np.nan] for title, a, b, ends in made]


def _predict(
    questions: Sequence[Question], sums: np.ndarray, tasks: Sequence[str], *, fast: bool
) -> dict[str, dict[str, Any]]:
    """Returns {folder: content of predictions.json} for the completely scored `tasks`."""
    found: dict[str, dict[str, Any]] = {}
    best = sums.astype(np.float32).argmax(axis=1)
    for question, choice, preference in zip(questions, best, _preference(sums), strict=True):
        kind, uid = KINDS[question.task], question.item.groups[0]
        folder = kind.fast if fast else kind.full
        if folder is None or question.task not in tasks:
            continue
        made = found.setdefault(folder, {}).setdefault(uid, {"predictions": []})["predictions"]
        made.append({"id": f"{uid}_{len(made)}", "pred": question.answers[choice]})
        if question.ratio is not None:
            made[-1]["prob"] = preference
    return found


def _describe(table: pd.DataFrame, rule: str, right: np.ndarray) -> str:
    """Formats the table, one row per task, and the share of `right` answers on all pairs."""
    from scalelab.lab import tables

    rows = [
        [row.group, row.metric, f"{row.items:,}", f"{100 * row.official:.1f}",
         f"{100 * row.fair:.1f}", f"[{100 * row.low:.1f}, {100 * row.high:.1f}]",
         "" if np.isnan(row.by_mean) else f"{100 * row.by_mean:.1f}"]
        for row in table[table["level"] == 1].itertuples()
    ]  # fmt: skip
    header = ["task", "score", "items", "official", "fair", "95% interval", "by mean"]
    share = f"all pairs, as in result.json and in studies: {100 * right.mean():.1f}\n"
    return f"rule {rule}\n{tables.plain(header, rows)}{share}"


OPTIONS = {
    "rows": ("full", "which items: full or fast; default: full"),
    "per_group": (0, "score only the first N items of each paradigm; 0, the default: all"),
    "revision": ("main", "name of the checkpoint in the challenge's layout; default: main"),
}
EVALUATION = Evaluation("babylm", read, measure, "folder of its data", "babylm", OPTIONS)

if __name__ == "__main__":
    suites.run("babylm")
