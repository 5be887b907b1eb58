"""Items (questions with one right text among several) and the table of their accuracies."""

import ast
import difflib
import functools
import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from scalelab.lab.compare.estimates import wilson

NUM_DRAWS = 100_000  # draws for the probability of a formula, accurate to about 0.002
UNFIT = "a text is too long for the model, or has no token that it scores"
LEFT_OUT = "{:,} of {:,} items are left out: " + UNFIT
TIED = "{:,} of {:,} items count as ties: " + UNFIT


Spans = tuple[tuple[int, int], ...]  # (first character, character after the last) of each


class Item(NamedTuple):
    """A question: which text is the right one?"""

    groups: tuple[str, ...]  # the rows of the table that include it, the finest first
    texts: tuple[str, ...]  # the alternatives
    right: int  # index of the right text
    # For each text, the ranges of characters that count; None: all.
    spans: tuple[Spans | None, ...] | None = None
    # Condition on the surprisals x0, x1, ... of the texts; replaces the right text.
    formula: str | None = None

    @property
    def chance(self) -> float:
        """The trivial score: the probability that a guess is right."""
        return 1 / len(self.texts) if self.formula is None else chance_of(self.formula)


class Answers(NamedTuple):
    """The answers of a model: [n] each."""

    gold: np.ndarray  # int32, index of the right text after `turn`
    outputs: np.ndarray  # [n, C] float32, the scores in the same order; -inf: no such text
    right: np.ndarray  # whether the answer is right
    by_mean: np.ndarray  # whether it is right by scores divided by numbers of tokens


def judge(items: Sequence[Item], sums: np.ndarray, counts: np.ndarray) -> Answers:
    """Compares the scores of each item's texts; the first text after `turn` wins a tie.

    Args:
      items: the questions.
      sums: [n, C] log-probabilities in nats; columns beyond an item's texts are ignored. NaN counts
        as a tie.
      counts: [n, C], numbers of scored tokens.
    """
    gold = np.zeros(len(items), np.int32)
    by_sum, by_mean = (np.full(sums.shape, -np.inf, np.float32) for _ in range(2))
    for k, item in enumerate(items):
        num = len(item.texts)
        if np.isnan(sums[k, 0]):
            by_sum[k, :num] = by_mean[k, :num] = 0.0
        elif item.formula is not None:
            by_sum[k, :2] = by_mean[k, :2] = turn([float(holds(item.formula, -sums[k])), 0.5], k)
        else:
            by_sum[k, :num] = turn(sums[k, :num].tolist(), k)
            by_mean[k, :num] = turn((sums[k, :num] / np.maximum(counts[k, :num], 1)).tolist(), k)
        gold[k] = k % 2 if item.formula is not None else (k + item.right) % num
    right, mean_right = by_sum.argmax(axis=1) == gold, by_mean.argmax(axis=1) == gold
    return Answers(gold, by_sum, right, mean_right)


def split_ties(items: Sequence[Item], values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the points of each item: if the first text wins ties, and if ties share the point.

    Args:
      items: the questions.
      values: [n, C] scores; -inf in columns beyond an item's texts.

    Returns:
      Two arrays [n], in [0, 1].
    """
    values, right = values.astype(np.float32), np.array([item.right for item in items])
    best = values == values.max(axis=1, keepdims=True)
    shares = best[np.arange(len(items)), right] / best.sum(axis=1)
    return best.argmax(axis=1) == right, shares


def turn(values: Sequence[Any], by: int) -> list[Any]:
    """Rotates a list.

    Args:
      values: the list.
      by: index of the first value in the result, modulo their number.
    """
    by %= len(values)
    return [*values[len(values) - by :], *values[: len(values) - by]]


def shared_words(a: str, b: str) -> tuple[Spans, Spans]:
    """Returns the character ranges, in each text, of the words that both texts have."""
    words = [[match for match in re.finditer(r"\w+|[^\w\s]", text)] for text in (a, b)]
    matcher = difflib.SequenceMatcher(None, *([m[0] for m in own] for own in words), autojunk=False)
    blocks = [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]
    left = tuple(words[0][i + k].span() for i, _, size in blocks for k in range(size))
    right = tuple(words[1][j + k].span() for _, j, size in blocks for k in range(size))
    return left, right


# --- Formulas ----------------

REGION = re.compile(r"\((\d+|\*);%([^%]+)%\)")  # (number of the region;%condition%), of SyntaxGym


def name_regions(formula: str) -> tuple[str, list[tuple[str, str]]]:
    """Returns a formula of SyntaxGym with x0, x1, ... for its regions, and the regions."""
    regions = list(dict.fromkeys(REGION.findall(formula)))
    names = {key: f"x{k}" for k, key in enumerate(regions)}
    code = REGION.sub(lambda match: names[match.groups()], formula)
    code = code.replace("[", "(").replace("]", ")").strip()
    parse_formula(code)
    return code, regions


def join_regions(regions: list[str]) -> tuple[str, list[tuple[int, int]]]:
    """Joins regions by spaces; returns the text and each region's range of characters in it."""
    text, edges = "", []
    for content in regions:
        begin = len(text)
        if content.strip():
            text += " " * bool(text) + content.strip()
        edges.append((begin, len(text)))
    return text, edges


def parse_formula(text: str) -> ast.Expression:
    """Parses comparisons of sums and differences of x0, x1, ..., joined by & and |.

    Raises:
      ValueError: the text is not such a formula.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(f"formula {text!r}: cannot be read") from None
    if not _is_condition(tree.body):
        raise ValueError(f"formula {text!r}: expected x0 < x1 or the like, joined by & and |")
    return tree


def _is_condition(node: ast.expr) -> bool:
    match node:
        case ast.Compare(left, [ast.Lt() | ast.Gt()], [right]):
            return _is_sum(left) and _is_sum(right)
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr(), right):
            return _is_condition(left) and _is_condition(right)
    return False


def _is_sum(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            return _is_sum(left) and _is_sum(right)
        case ast.Constant(value):
            return type(value) in (int, float)
        case ast.Name(name):
            return bool(re.fullmatch(r"x\d+", name))
    return False


def holds(formula: str, values: np.ndarray) -> np.ndarray:
    """Returns True where a formula holds: bool [], or [R].

    Args:
      formula: an expression of x0, x1, ..., as `parse_formula` reads it.
      values: [k] or [k, R], the values of x0, x1, ....
    """
    code = compile(parse_formula(formula), "formula", "eval")
    made = eval(code, {"__builtins__": {}}, {f"x{k}": x for k, x in enumerate(values)})
    return np.asarray(made, bool)


@functools.cache
def chance_of(formula: str) -> float:
    """Estimates the probability that the formula holds if all values are drawn independently.

    The values are standard normal. If comparisons share no value, each holds with probability 1/2.
    """
    names = {node.id for node in ast.walk(parse_formula(formula)) if isinstance(node, ast.Name)}
    draws = np.random.default_rng(0).standard_normal((len(names), NUM_DRAWS))
    return float(holds(formula, draws).mean())


def table(items: Sequence[Item], right: np.ndarray, by_mean: np.ndarray) -> pd.DataFrame:
    """Makes the table of accuracies: rows for each level of groups, then two means over all.

    Args:
      items: the questions.
      right: [n], the points of each answer, in [0, 1].
      by_mean: [n], the points by scores divided by numbers of tokens.

    Returns:
      Columns level, group, items, accuracy, low, high, by_mean, chance, as from `group_means`.
    """
    chances = [item.chance for item in items]
    values = pd.DataFrame({"accuracy": right, "by_mean": by_mean, "chance": chances})
    made = group_means([item.groups for item in items], values)
    columns = ["level", "group", "items", "accuracy", "low", "high", "by_mean", "chance"]
    return made.reindex(columns=columns)


def group_means(groups: Sequence[tuple[str, ...]], values: pd.DataFrame) -> pd.DataFrame:
    """Averages items by group.

    Args:
      groups: [n], the groups of each item, the finest first.
      values: [n] rows of numbers; the first column is in [0, 1].

    Returns:
      Columns level, group, items, the columns of `values`, and low and high, the 95% interval of
      the first of them. A row of a higher level, and `mean`, averages its finest groups. The last
      row, `all items`, averages the items.
    """
    names, levels = list(values), range(max(map(len, groups)))
    frame = pd.DataFrame(groups, columns=levels).join(values)
    rows = []
    for level in [*levels, None]:
        named = frame.groupby(level, sort=False) if level is not None else [("mean", frame)]
        for name, part in named:
            own = part.groupby(0, sort=False)
            low, high = wilson([(x.mean(), len(x)) for _, x in own[names[0]]])
            rows.append([level, name, len(part), *own[names].mean().mean(), low, high])
    shares = values.mean()
    rows.append([None, "all items", len(values), *shares, *wilson([(shares.iloc[0], len(values))])])
    return pd.DataFrame(rows, columns=["level", "group", "items", *names, "low", "high"])


def hits(right: np.ndarray, labels: Sequence[str] = ("missed", "found")) -> dict[str, Any]:
    """Returns the fields of `Measured` that right and wrong answers determine.

    Args:
      right: [n] bool.
      labels: names of a wrong and of a right answer.
    """
    with np.errstate(divide="ignore"):
        outputs = np.log(np.eye(2, dtype=np.float32)[right.astype(int)])
    return {
        "gold": np.ones(len(right), np.int32),
        "outputs": outputs,
        "labels": list(labels),
        "scores": {"hits": float(right.mean())},
    }


def check_known(path: pathlib.Path, is_unknown: np.ndarray, answers: Sequence[str]) -> None:
    """Refuses a run if most answers are unknown to its tokenizer.

    Args:
      path: run folder, for the message.
      is_unknown: [n] bool.
      answers: [n] texts.

    Raises:
      ValueError: more than half are unknown.
    """
    if 2 * is_unknown.sum() > len(is_unknown):
        raise ValueError(
            f"the tokenizer of {path} cannot write {is_unknown.sum():,} of the"
            f" {len(is_unknown):,} answers, such as {answers[int(is_unknown.argmax())][-60:]!r}"
        )


def describe(made: pd.DataFrame) -> str:
    """Formats a table of `group_means`, in percent, for a terminal."""
    from scalelab.lab import tables

    shares = [name for name in made if name not in ("level", "group", "items", "low", "high")]
    rows = []
    for row in made.to_dict("records"):
        cells = ["" if math.isnan(row[name]) else f"{100 * row[name]:.1f}" for name in shares]
        cells.insert(1, "[{:.1f}, {:.1f}]".format(*(100 * row[end] for end in ("low", "high"))))
        rows.append([str(row["group"]), f"{row['items']:,}", *cells])
    header = ["group", "items", *(name.replace("_", " ") for name in shares)]
    header.insert(3, "95% interval")
    return tables.plain(header, rows)
