"""Prompts: tasks as text with a gap, after zero, one or a few solved examples (Brown et al. 2020).

  python -m scalelab.eval.prompts --run=RUN --data=DIR --workdir=DIR --shots=4 --seeds=3 --orders=2

DIR has a folder for each task: SST-2, MNLI, QNLI, QQP in GLUE's layout; RTE, CB, BoolQ, WiC in
SuperGLUE's; agnews; trec. Absent tasks are skipped. `TASKS` has the templates and label words. The
answer is the label with the highest score of its word. A causal model scores log p of the word
given the text before it. A masked model scores log p of the word's pieces at the gap, from left to
right. ELECTRA's discriminator scores log p that the word is original. --rule chooses another rule
of scalelab/eval/sentence_scores.py.

Demonstrations are drawn from the training set with balanced labels: --seeds draws, each in --orders
orders. --random_labels gives them random labels, as a control. A prompt is never cut. A task gets
fewer demonstrations if its median example does not fit together with the longest draw. An example
that is too long for a prompt counts as a tie, so that models can be compared example by example.
Notes count both cases.

`accuracy` is the accuracy of the mean probabilities over prompts, as in predictions.tsv, with a 95%
interval. `mean`, `worst` and `best` are accuracies of single prompts. `majority` is the share of
the most frequent label. scalelab/eval/evaluation.py lists the files of --workdir.
"""

import pathlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from scalelab.eval import items, pairs
from scalelab.eval.evaluation import Asked, Measured
from scalelab.eval.items import Item
from scalelab.tasks import data_files

if TYPE_CHECKING:
    from scalelab.training.pretrained import Pretrained


class PromptTask(NamedTuple):
    """A task as a text with a gap."""

    train: str  # file below --data: the first that matches the pattern
    dev: str
    keys: tuple[str, ...]  # names of the text fields, in the order of the template
    label: str  # name of the label field
    template: str  # {label} is the gap
    words: Mapping[str, str]  # label -> its word


TRUE_FALSE = "{} Question: {} True or false? Answer: {label}."
THREE = {"entailment": "true", "contradiction": "false", "neutral": "neither"}
TRUE_FALSE_NEITHER = "{} Question: {} True, false or neither? Answer: {label}."
TASKS = {
    "SST-2": PromptTask(
        "SST-2/train.tsv", "SST-2/dev.tsv", ("sentence",), "label", "{} It was {label}.",
        {"0": "bad", "1": "good"},
    ),
    "AG News": PromptTask(
        "agnews/16-shot/*/train.tsv", "agnews/test.csv", ("text",), "label",
        "{} This is news about {label}.",
        {"0": "world", "1": "sports", "2": "business", "3": "technology"},
    ),
    "TREC": PromptTask(
        "trec/TREC.train", "trec/TREC.test", ("text",), "label",
        "{} The answer is a {label}.",
        {"ABBR": "name", "DESC": "description", "ENTY": "thing", "HUM": "person",
         "LOC": "place", "NUM": "number"},
    ),
    "MNLI": PromptTask(
        "MNLI/train.tsv", "MNLI/dev_matched.tsv", ("sentence1", "sentence2"), "gold_label",
        TRUE_FALSE_NEITHER, THREE,
    ),
    "QNLI": PromptTask(
        "QNLI/train.tsv", "QNLI/dev.tsv", ("question", "sentence"), "label",
        "{1} This answers the question {0} Answer: {label}.",
        {"entailment": "true", "not_entailment": "false"},
    ),
    "QQP": PromptTask(
        "QQP/train.tsv", "QQP/dev.tsv", ("question1", "question2"), "is_duplicate",
        "{} {} The two questions ask the same: {label}.", {"1": "true", "0": "false"},
    ),
    "RTE": PromptTask(
        "RTE/train.jsonl", "RTE/val.jsonl", ("premise", "hypothesis"), "label", TRUE_FALSE,
        {"entailment": "true", "not_entailment": "false"},
    ),
    "CB": PromptTask(
        "CB/train.jsonl", "CB/val.jsonl", ("premise", "hypothesis"), "label",
        TRUE_FALSE_NEITHER, THREE,
    ),
    "BoolQ": PromptTask(
        "BoolQ/train*.jsonl", "BoolQ/val.jsonl", ("passage", "question"), "label",
        "{} Question: {}? Answer: {label}.", {"True": "true", "False": "false"},
    ),
    "WiC": PromptTask(
        "WiC/train.jsonl", "WiC/val.jsonl", ("sentence1", "sentence2", "word"), "label",
        "{} {} The word {} means the same in both: {label}.", {"True": "true", "False": "false"},
    ),
}  # fmt: skip


class Example(NamedTuple):
    """An example of a task."""

    task: str
    is_train: bool
    texts: tuple[str, ...]
    label: int  # index of its label in the task's `words`


def read(folder: pathlib.Path) -> list[Example]:
    """Reads the tasks of a folder.

    Raises:
      ValueError: no task has a dev file there, or a file does not fit its task.
    """
    found = []
    for name, task in TASKS.items():
        labels = list(task.words)
        for pattern, is_train in ((task.train, True), (task.dev, False)):
            for path in sorted(folder.glob(pattern))[:1]:
                for row in _read_rows(path, task):
                    if str(row[task.label]) not in labels:
                        raise ValueError(f"{path}: label {row[task.label]!r} is none of {labels}")
                    texts = tuple(" ".join(str(row[key]).split()) for key in task.keys)
                    found.append(Example(name, is_train, texts, labels.index(str(row[task.label]))))
    if all(own.is_train for own in found):
        expected = ", ".join(task.dev for task in TASKS.values())
        raise ValueError(f"{folder}: expected one of {expected} in it")
    return found


def _read_rows(path: pathlib.Path, task: PromptTask) -> Iterator[Mapping[str, Any]]:
    """Yields the examples of a file by column; the file's suffix determines its format."""
    if path.suffix == ".jsonl":
        yield from (row for _, row in data_files.read_objects(path, task.keys, (task.label,)))
    elif path.suffix == ".tsv":
        names = (*task.keys, task.label)
        yield from (row for _, row in data_files.read_table(path, names))
    elif path.suffix == ".csv":  # AG News: class, title, description, without a header
        for number, row in data_files.read_fields(path, ",", quoted=True):
            with data_files.place(path, number):
                label, title, description = row
                yield {"label": str(int(label) - 1), "text": f"{title} {description}"}
    else:  # TREC: LABEL:fine text
        for line in filter(None, data_files.read_lines(path, "latin-1")):
            label, _, text = line.partition(" ")
            yield {"label": label.partition(":")[0], "text": text}


# --- Prompts ----------------


def render(example: Example, word: str, before: str = "") -> tuple[str, tuple[int, int]]:
    """Returns the text of an example with a word in its gap, and the span of " word" in it.

    Args:
      example: the example.
      word: a label word.
      before: demonstrations, put before the text.
    """
    filled = TASKS[example.task].template.format(*example.texts, label="\0")
    head, _, tail = filled.partition("\0")
    begin = len(before) + len(head)
    return before + head + word + tail, (begin - 1, begin + len(word))


def ask(example: Example, before: str) -> Item:
    """Makes the item of an example: the demonstrations and a text, for each label word."""
    texts, spans = zip(*(render(example, word, before) for word in words_of(example)), strict=True)
    return Item((example.task,), texts, example.label, tuple((span,) for span in spans))


def words_of(example: Example) -> list[str]:
    """Returns the label words of an example's task."""
    return list(TASKS[example.task].words.values())


def demonstrate(name: str, train: Sequence[Example], options: Mapping[str, Any]) -> list[list[str]]:
    """Draws the demonstrations of each prompt of a task.

    Args:
      name: name of the task.
      train: its training examples.
      options: `seeds`, `orders` and `shots`.

    Returns:
      `seeds` x `orders` lists of `shots` texts.

    Raises:
      ValueError: the training set has fewer than `shots` examples.
    """
    shots = options["shots"]
    if not shots:
        return [[]]
    if len(train) < shots:
        raise ValueError(f"--shots={shots}, but {name} has {len(train)} training examples")
    words, labels = words_of(train[0]), np.array([own.label for own in train])
    prompts = []
    for seed in range(options["seeds"]):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        mixed, turn = rng.permutation(len(train)), rng.permutation(len(words))
        rounds = pd.Series(labels[mixed]).groupby(labels[mixed]).cumcount()
        chosen = mixed[np.lexsort((turn[labels[mixed]], rounds))][:shots]
        given = rng.integers(len(words), size=shots) if options["random_labels"] else labels[chosen]
        drawn = [render(train[k], words[g])[0] for k, g in zip(chosen, given, strict=True)]
        orders = [np.arange(shots), *(rng.permutation(shots) for _ in range(options["orders"] - 1))]
        prompts += [[drawn[k] for k in order] for order in orders]
    return prompts


class Prompts(NamedTuple):
    """The prompts of n examples."""

    items: list[list[Item]]  # n items for each prompt
    fits: np.ndarray  # [n] bool, all prompts are at most as long as the longest training input
    texts: list[str]  # [n], the examples without demonstrations and label word
    notes: list[str]  # about examples that do not fit


def choose(
    opened: "Pretrained", examples: Sequence[Example], options: Mapping[str, Any]
) -> Prompts:
    """Makes the prompts of one task.

    Args:
      opened: the run.
      examples: all examples of the task, train and dev.
      options: the options of the program.

    Raises:
      ValueError: the tokenizer does not tell the label words apart.
    """
    from scalelab.eval import lm

    room, encode = lm.make_reading(opened, None, None).context, opened.tokenizer.encode_flat
    name, dev = examples[0].task, [own for own in examples if not own.is_train]
    if len(dev) > options["examples"]:
        drawn = np.random.default_rng(0).choice(len(dev), options["examples"], replace=False)
        dev = [dev[k] for k in sorted(drawn)]
    drawn = demonstrate(name, [own for own in examples if own.is_train], options)
    sizes = [np.diff(encode(own or [""])[1]).cumsum().tolist() for own in drawn]
    alone = np.diff(encode([ask(own, "").texts[0] for own in dev])[1])
    num = options["shots"]
    while num and np.median(alone) + max(own[num - 1] for own in sizes) > room:
        num -= 1
    notes = [f"{name}: {num} of {options['shots']} demonstrations fit"] * (num < options["shots"])
    prompts = [[ask(own, "".join(f"{t} " for t in shots[:num])) for own in dev] for shots in drawn]
    fits = np.ones(len(dev), bool)
    for prompt in prompts:
        fits &= pairs.lengths(opened, prompt, pairs.encode(opened, prompt))[:, 1] <= room
    if not fits.all():
        count = f"{(~fits).sum():,} of {len(dev):,} prompts"
        notes.append(f"{name}: {count} are longer than {room} tokens and count as ties")
    return Prompts(prompts, fits, [render(own, "")[0] for own in dev], notes)


def tabulate(
    asked: Sequence[Item], combined: np.ndarray, single: Sequence[np.ndarray]
) -> pd.DataFrame:
    """Makes the rows of the report.

    Args:
      asked: the examples.
      combined: bool [n]: the answers by the mean over prompts that are right.
      single: for each prompt, bool [n]: the answers that are right.
    """
    groups = [item.groups for item in asked]
    gold = pd.Series([item.right for item in asked])
    most = gold.groupby([own[0] for own in groups]).transform(lambda own: own.mode()[0])
    values = pd.DataFrame({"accuracy": combined, "majority": gold == most})
    each = [items.group_means(groups, pd.DataFrame({"right": own}))["right"] for own in single]
    spread = pd.concat(each, axis=1)
    made = items.group_means(groups, values)
    return made.assign(mean=spread.mean(axis=1), worst=spread.min(axis=1), best=spread.max(axis=1))


def measure(opened: "Pretrained", examples: Sequence[Example], asked: Asked) -> Measured:
    """Measures a model on the tasks.

    Raises:
      ValueError: an option or the rule does not suit the model, or no example fits it.
    """
    from scalelab.eval import sentence_scores

    options = asked.options
    if options["random_labels"] and not options["shots"]:
        raise ValueError("--random_labels needs demonstrations: set --shots")
    rule = sentence_scores.choose_rule(opened, options["rule"])
    if options["rule"] is None and rule == "pll":
        rule = "pll_word"
    tasks: dict[str, list[Example]] = {}
    for own in examples:
        tasks.setdefault(own.task, []).append(own)
    made = [choose(opened, own, options) for own in tasks.values() if not own[-1].is_train]
    notes = [note for own in made for note in own.notes]
    each = zip(*(own.items for own in made), strict=True)
    prompts = [[item for part in parts for item in part] for parts in each]
    fits = np.concatenate([own.fits for own in made])
    if not fits.any():
        raise ValueError(f"{opened.path} can read no example: {'; '.join(notes)}")
    every = [item for prompt in prompts for item in prompt]
    sums, counts = pairs.score(opened, every, rule, asked, fits=np.tile(fits, len(prompts)))
    sums, counts = (x.reshape(len(prompts), len(prompts[0]), -1) for x in (sums, counts))
    single = [items.judge(prompts[0], *own).right for own in zip(sums, counts, strict=True)]
    mixed = special.logsumexp(special.log_softmax(sums, axis=-1), axis=0) - np.log(len(prompts))
    answers = items.judge(prompts[0], mixed, np.ones_like(mixed))
    table = tabulate(prompts[0], answers.right, single)
    way = f"{rule}, {options['shots']} shots, {len(prompts)} prompts"
    way += ", random labels" * options["random_labels"]
    width = answers.outputs.shape[1]
    return Measured(
        # The same items for models that read fewer demonstrations.
        texts=[[text for own in made for text in own.texts]],
        gold=answers.gold,
        outputs=answers.outputs,
        labels=[str(k + 1) for k in range(width)],
        recipe=way,
        scores={"accuracy": float(answers.right.mean())},
        table=table,
        printed=items.describe(table),
        notes=(f"rule {way}", *notes),
    )


OPTIONS = {
    "shots": (0, "demonstrations in a prompt; default: 0"),
    "seeds": (1, "draws of the demonstrations; default: 1"),
    "orders": (1, "orders of each draw; default: 1"),
    "random_labels": (False, "give the demonstrations random labels"),
    "examples": (1000, "maximum of examples per task, drawn at random; default: 1000"),
    "rule": pairs.OPTIONS["rule"],
}


if __name__ == "__main__":
    from scalelab.eval import suites

    suites.run("prompts")
