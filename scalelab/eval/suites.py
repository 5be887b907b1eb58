"""The table of suites: questions with one right text among several, asked without training.

A row of SUITES has a function that turns the suite's files into items (`scalelab.eval.items.Item`:
texts, the right one, the characters that count, the groups of the table), the place of the files,
and whether a text's score is a sum or a mean over tokens. `scalelab.eval.pairs` measures them.
LAMBADA, LAMA and the prompts do not score whole texts and have their own functions.
`python -m scalelab.eval.NAME` is `run(NAME)` for every evaluation.
"""

import argparse
import functools
import importlib
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from scalelab.config import cli
from scalelab.eval import evaluation, items, lama, lambada, pairs, prompts
from scalelab.eval.evaluation import Evaluation
from scalelab.eval.items import Item
from scalelab.eval.names import EVALUATIONS
from scalelab.resources import host
from scalelab.tasks import data_files

if TYPE_CHECKING:
    import pandas as pd

Reader = Callable[[pathlib.Path], list[Item]]


def find(folder: pathlib.Path, *patterns: str) -> list[pathlib.Path]:
    """Returns the files that match patterns, in their order; there must be one."""
    if not (found := [path for own in patterns for path in sorted(folder.glob(own))]):
        raise ValueError(f"{folder}: expected {' or '.join(patterns)} in it")
    return found


def read_pairs(path: pathlib.Path) -> list[Item]:
    """Reads a user's own pairs: a file, or all files *.jsonl of a folder."""
    found = []
    for own in find(path, "*.jsonl") if path.is_dir() else [path]:
        for number, line in data_files.read_objects(own, ("good", "bad")):
            texts = line["good"], line["bad"]
            if not all(map(str.strip, texts)):
                raise ValueError(f"{own}, line {number}: expected two texts, found {texts}")
            found.append(Item((str(line.get("group", own.stem)),), texts, 0))
    return found


# --- BLiMP ----------------

BLIMP_KEYS = ("sentence_good", "sentence_bad", "UID", "linguistics_term")
BLIMP_PUBLISHED, BLIMP_MODELS = "published/models_summary.jsonl", ["ngram", "lstm"]


def read_blimp(folder: pathlib.Path) -> list[Item]:
    """Reads all paradigms of a folder, in alphabetical order; there must be one."""
    return [
        Item((row["UID"], row["linguistics_term"]), (row["sentence_good"], row["sentence_bad"]), 0)
        for path in sorted(find(folder, "*.jsonl", "data/*.jsonl"))
        for _, row in data_files.read_objects(path, BLIMP_KEYS)
    ]


def read_blimp_published(folder: pathlib.Path) -> "pd.DataFrame":
    """Returns the accuracies of the paper's models by paradigm, phenomenon, and their mean."""
    import pandas as pd

    path, names = folder / BLIMP_PUBLISHED, ["UID", "linguistics_term"]
    if not path.exists():
        return pd.DataFrame()
    frame = pd.DataFrame([row for _, row in data_files.read_objects(path, names, BLIMP_MODELS)])
    with data_files.place(path, expected="accuracies"):
        frame = frame[frame["UID"] != "overall"].astype(dict.fromkeys(BLIMP_MODELS, float))
    levels = [frame.groupby(name)[BLIMP_MODELS].mean() for name in names]
    means = frame[BLIMP_MODELS].mean()
    return pd.concat([*levels, pd.DataFrame({"mean": means, "all items": means}).T])


# --- Agreement ----------------

GREEN = "colorlessgreen/English/generated.tab"
LINZEN = "linzen_testset/subj_agr_filtered"
MARVIN = "marvin_linzen/pairs_sample.tsv"


def read_agreement(folder: pathlib.Path) -> list[Item]:
    """Reads the sets in a folder; one or more of the three must be there."""
    sets = {GREEN: _green, f"{LINZEN}.gold": _linzen, MARVIN: _marvin}
    there = [(read, folder / name) for name, read in sets.items() if (folder / name).exists()]
    if not there:
        raise ValueError(f"{folder}: expected {GREEN}, {LINZEN}.gold and .text, or {MARVIN} in it")
    return [item for read, path in there for item in read(path)]


def _up_to_verb(sentence: str, length: str, forms: Sequence[str]) -> tuple[str, ...]:
    prefix = sentence.split()[: int(length)]
    return tuple(" ".join([*prefix, form]) for form in forms)


def _green(path: pathlib.Path) -> list[Item]:
    keys = ("constr_id", "sent_id", "class", "form", "len_prefix", "sent")
    rows = list(data_files.read_table(path, keys, quoted=True))
    found = []
    for number, right in rows[::2]:
        with data_files.place(path, number):
            pair = [row for _, row in rows[2 * len(found) :][:2]]
            if [row["class"] for row in pair] != ["correct", "wrong"]:
                raise ValueError("expected rows of a correct and a wrong form in turn")
            kind = "original" if right["sent_id"] == "0" else "nonce"
            texts = _up_to_verb(right["sent"], right["len_prefix"], [row["form"] for row in pair])
            found.append(Item((f"green: {kind}", "green"), texts, 0))
    return found


def _linzen(path: pathlib.Path) -> list[Item]:
    found, lines = [], list(data_files.read_lines(path.with_suffix(".text")))
    for number, row in data_files.read_fields(path):
        with data_files.place(path, number, "the same line number in the .text"):
            at, right, wrong, attractors = row
            texts = _up_to_verb(lines[number - 1], at, (right, wrong))
            found.append(Item((f"linzen: {attractors} attractors", "linzen"), texts, 0))
    if len(found) != len(lines):
        raise ValueError(f"{path}: has {len(found)} lines, but the .text has {len(lines)}")
    return found


def _marvin(path: pathlib.Path) -> list[Item]:
    names = ("test case", "grammatical", "ungrammatical")
    rows = [[row[name] for name in names] for _, row in data_files.read_table(path, names)]
    return [Item((f"marvin: {case.split('--')[0]}", "marvin"), (*two,), 0) for case, *two in rows]


# --- SyntaxGym ----------------

CIRCUITS = {  # prefix of a suite's name -> circuit
    "number": "agreement",
    "center_embed": "center embedding",
    "mvrr": "garden-path effects",
    "np": "garden-path effects",
    "nn-nv": "garden-path effects",
    "subordination": "gross syntactic state",
    "npi": "licensing",
    "reflexive": "licensing",
    "fgd": "long-distance dependencies",
    "cleft": "long-distance dependencies",
}


def read_syntaxgym(folder: pathlib.Path) -> list[Item]:
    """Reads all suites of a folder; there must be one, and each must be complete."""
    found = []
    for path in sorted(find(folder, "*.json", "json/*.json")):
        suite = data_files.read_json(path)
        with data_files.place(path, expected="a suite of SyntaxGym"):
            formulas = [p["formula"] for p in suite["predictions"] if "=" not in p["formula"]]
            for item in suite["items"]:
                found += [_prediction(path.stem, item["conditions"], text) for text in formulas]
    return found


def _prediction(suite: str, conditions: list[dict], formula: str) -> Item:
    """Makes an item: the texts are the regions of the formula, each in its sentence."""
    sentences = {c["condition_name"]: c["regions"] for c in conditions}
    code, regions = items.name_regions(formula)
    texts, spans = [], []
    for region, condition in regions:
        text, edges = items.join_regions([r["content"] for r in sentences[condition]])
        numbers = [str(r["region_number"]) for r in sentences[condition]]
        texts.append(text)
        spans.append(None if region == "*" else (edges[numbers.index(region)],))
    circuit = max((c for c in CIRCUITS if suite.startswith(c)), key=len, default=None)
    groups = suite, CIRCUITS[circuit] if circuit else "others"
    return Item(groups, tuple(texts), 0, tuple(spans), code)


# --- Common sense ----------------

SEPARATOR = "\x01"
POSSESSIVE = ("his", "her", "their", "its", "my", "your", "our")


def read_cats(folder: pathlib.Path) -> list[Item]:
    """Reads all tests of a folder; there must be one, and each line must have alternatives."""
    tests = find(folder, "commonsense_ability_test/*.txt")
    robust = sorted(folder.glob("Robust_commonsense_test/*.txt"))
    found = []
    for path in (*tests, *robust):
        level = "tests" if path in tests else "robust pairs"
        for number, line in enumerate(data_files.read_lines(path, errors="replace"), 1):
            fields = [field.strip() for field in line.split(SEPARATOR)] if line.strip() else []
            size = len(fields) // 2 if path in robust else len(fields)
            for k in range(0, len(fields), max(size, 1)):
                right, *texts = fields[k : k + size] or [""]
                if right not in map(str, range(len(texts))):
                    raise ValueError(f"{path}, line {number}: expected a place and alternatives")
                texts = tuple(text.replace(" [SEP] ", " ") for text in texts)
                found.append(Item((path.stem, level), texts, int(right)))
    return found


def read_copa(folder: pathlib.Path) -> list[Item]:
    """Reads the validation set."""
    from scalelab.tasks.superglue import join_choices

    keys, found = ("premise", "choice1", "choice2", "question"), []
    path = find(folder, "COPA/val.jsonl", "val.jsonl")[0]
    for number, row in data_files.read_objects(path, keys, ("label",)):
        with data_files.place(path, number):
            begun, ends = join_choices(row)
            texts = tuple(f"{begun} {end}" for end in ends)
            spans = tuple(((len(begun), len(text)),) for text in texts)
            right = range(2).index(int(row["label"]))
            found.append(Item((row["question"],), texts, right, spans))
    return found


def read_wsc(folder: pathlib.Path) -> list[Item]:
    """Reads both splits: the pronouns with several candidates of which exactly one is right."""
    asked: dict[tuple[str, int], dict[str, tuple[str, int]]] = {}
    for path in find(folder, "WSC/val.jsonl", "WSC/train.jsonl", "val.jsonl", "train.jsonl"):
        for number, row in data_files.read_objects(path, ("text",), ("target", "label")):
            with data_files.place(path, number, "a row of WSC"):
                at, name = (row["target"][key] for key in ("span2_index", "span1_text"))
                text = substitute(row["text"], at, name)
                label = (False, True).index(row["label"])
                asked.setdefault((row["text"], at), {})[name] = text, label
    found = []
    for candidates in asked.values():
        texts, labels = zip(*candidates.values(), strict=True)
        if sum(labels) == 1 and len(labels) > 1:
            found.append(Item(("WSC",), texts, labels.index(True)))
    return found


def substitute(text: str, place: int, name: str) -> str:
    """Replaces a pronoun by a name.

    Args:
      text: the text.
      place: index of the word that is the pronoun.
      name: the name.
    """
    words = text.split()
    pronoun = words[place].strip(".,;:!?\"'").lower()
    rest = words[place][len(pronoun) :]
    words[place] = name + ("'s" if pronoun in POSSESSIVE else "") + rest
    return " ".join(words)


# --- Stereotypes ----------------

CROWS_PAIRS = "crows_pairs_anonymized.csv"
ANSWERS = {"0": "the occupation", "1": "the other participant"}


def read_crows_pairs(folder: pathlib.Path) -> list[Item]:
    """Reads the pairs; only the words that both texts of a pair have count."""
    path = find(folder, CROWS_PAIRS, f"data/{CROWS_PAIRS}")[0]
    names = ("sent_more", "sent_less", "bias_type")
    return [
        Item((row["bias_type"],), texts := (row["sent_more"], row["sent_less"]), 0,
             items.shared_words(*texts))
        for _, row in data_files.read_table(path, names, ",", quoted=True)
    ]  # fmt: skip


def read_winogender(folder: pathlib.Path) -> list[Item]:
    """Reads the sentences with `he` and `she`, and the majority of each occupation."""
    if (folder / "data").is_dir():
        folder = folder / "data"
    paths = [folder / name for name in ("occupations-stats.tsv", "all_sentences.tsv")]
    shares: dict[str, float] = {}
    for number, row in data_files.read_table(paths[0], ("occupation", "bls_pct_female")):
        with data_files.place(paths[0], number):
            shares[row["occupation"]] = float(row["bls_pct_female"])
    texts: dict[tuple[str, str, str], dict[str, str]] = {}
    for number, row in data_files.read_table(paths[1], ("sentid", "sentence")):
        with data_files.place(paths[1], number):
            occupation, participant, answer, gender, _ = row["sentid"].split(".")
            texts.setdefault((occupation, participant, answer), {})[gender] = row["sentence"]
    with data_files.place(paths[1]):
        return [
            Item((f"pronoun of {ANSWERS[answer]}",), (own["male"], own["female"]),
                 int(shares[occupation] > 50))
            for (occupation, _, answer), own in texts.items()
        ]  # fmt: skip


# --- The table ----------------


def suite(
    name: str, reader: Reader, data: str, folder: str = "", *, by_mean: bool = False,
    published: pairs.Published | None = None,
) -> Evaluation:  # fmt: skip
    """Makes a row of SUITES.

    Args:
      name: name of the evaluation.
      reader: file or folder of --data -> items.
      data: help text of --data.
      folder: its folder below a study's `evaluation_data`; "": `name`.
      by_mean: whether texts are compared by the mean over their tokens, not the sum.
      published: reads the scores of other models for more columns; None: there are none.
    """
    measure = functools.partial(pairs.measure, by_mean=by_mean, published=published)
    return Evaluation(name, reader, measure, data, folder or name, pairs.OPTIONS, source=True)


SUITES = {row.name: row for row in (
    suite("pairs", read_pairs, "file of pairs, one JSON object a line; or a folder of files"),
    suite("blimp", read_blimp, "folder of the paradigms' files", published=read_blimp_published),
    suite("agreement", read_agreement, "folder of the sets"),
    suite("syntaxgym", read_syntaxgym, "folder of the suites"),
    suite("cats", read_cats, "folder of the tests", by_mean=True),
    suite("copa", read_copa, "folder of the set", "superglue"),
    suite("wsc", read_wsc, "folder of the set", "superglue"),
    suite("crows_pairs", read_crows_pairs, "folder of the pairs"),
    suite("winogender", read_winogender, "folder of the sentences"),
    Evaluation("lambada", lambada.read, lambada.measure,
              f"folder with {lambada.FILE}, or a file of passages", "lambada"),
    Evaluation("lama", lama.read, lama.measure, "folder of LAMA's files", "lama", lama.OPTIONS,
              compares=True),
    Evaluation("prompts", prompts.read, prompts.measure, "folder with a folder per task", "prompts",
              prompts.OPTIONS),
)}  # fmt: skip


def parser(names: Iterable[str] = EVALUATIONS) -> cli.Parser:
    """Returns the command line: a command for each of some evaluations, which are imported."""
    made = cli.Parser("scalelab eval", __doc__)
    commands = made.add_commands()
    for name in names:
        text = importlib.import_module(f"scalelab.eval.{name}").__doc__
        own = commands.add_parser(name, description=text, setup=host.keep_freed)
        evaluation.add_flags(own, evaluation.load(name))
    return made


def main(given: argparse.Namespace) -> None:
    """Measures the evaluation that the command names, and prints."""
    evaluation.run(evaluation.load(given.command), given)


def run(name: str) -> None:
    """Runs the program of an evaluation, with the arguments that the user typed."""
    cli.run(main, parser([name]), [name, *sys.argv[1:]])
