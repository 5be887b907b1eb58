"""Word similarity: do the vectors of similar words point in similar directions?

  python -m scalelab.eval.wordsim --run=RUN --data=DIR --workdir=DIR

DIR holds files of word pairs, *.txt or *.tsv, or is one such file. A line has two words and the
score of their similarity by people, separated by tabs; there is no header. WordSim-353, SimLex-999
(Hill et al. 2015), MEN (Bruni et al. 2014) and the rare words of Luong et al. 2013 may need to be
cut to these three columns. questions-words.txt, analogies, is not read.

The score of a pair is the cosine of the vectors of its words: rows of the table through which the
model reads tokens, whatever the layers do with them. If a word is several pieces, its vector is
their mean. A word is encoded with the blank before it. If the tokenizer does not know a word, its
pairs cannot be scored, and stand in the middle of their file's ranking.

The table has Spearman's correlation of the cosines and people's scores. Files have different
scales, so pairs are first ranked within their file, as the share of the file's pairs with a lower
score. The rows `all pairs`, the score in result.json and in studies, and `words of one piece` use
these ranks. predictions.tsv has these shares, cosines.json the cosines. Intervals are 95%, by a
bootstrap over pairs.

The correlation of vectors that know nothing is 0. Words that share pieces are similar under random
weights too: --random measures this.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from scalelab.eval import suites
from scalelab.eval.evaluation import Asked, Evaluation, Measured
from scalelab.lab.compare import bootstrap, estimates
from scalelab.tasks import data_files, metrics

if TYPE_CHECKING:
    from scalelab.training.pretrained import Pretrained

ANALOGIES = "questions-words.txt"


class Pair(NamedTuple):
    """Two words and their similarity."""

    source: str  # name of the file, without its ending
    words: tuple[str, str]
    score: float  # mean judgment of people


def read(path: pathlib.Path) -> list[Pair]:
    """Reads the pairs of a file, or of all files of a folder.

    Raises:
      ValueError: there is no pair, a line is no pair, or all scores of a file are equal.
    """
    paths = sorted(own for end in ("txt", "tsv") for own in path.glob(f"*.{end}"))
    paths = [own for own in paths if own.name != ANALOGIES] if path.is_dir() else [path]
    found = []
    for own in paths:
        begin = len(found)
        for number, row in data_files.read_fields(own):
            with data_files.place(own, number, "two words and a score, separated by tabs"):
                first, second, score = row
                if not first.strip() or not second.strip() or not np.isfinite(float(score)):
                    raise ValueError(f"expected two words and a score, found {row}")
                found.append(Pair(own.stem, (first, second), float(score)))
        if len({pair.score for pair in found[begin:]}) < 2:
            raise ValueError(f"{own}: expected pairs with different scores")
    if not found:
        raise ValueError(f"{path}: expected files *.txt or *.tsv of word pairs in it")
    return found


def find_vectors(opened: "Pretrained", words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of words, [n, D] float64, and their numbers of pieces, [n].

    A word that the tokenizer does not know has 0 pieces and the vector 0.

    Raises:
      ValueError: the model has no vectors, or they are not finite.
    """
    from flax.traverse_util import flatten_dict

    table = flatten_dict(opened.params, sep="/")[opened.net.TOKEN_TABLE]
    table = np.asarray(table, np.float64)
    if table.ndim < 2:
        raise ValueError(f"{opened.path}: the model of {opened.config.system} has no word vectors")
    if not np.isfinite(table).all():
        raise ValueError("the model's vectors are not finite: its training had diverged")
    before = "a "
    starts, ids, (_, stops, _) = opened.tokenizer.encode_aligned([before + word for word in words])
    owner = np.repeat(np.arange(len(words)), np.diff(starts))
    is_unknown = ids == opened.tokenizer.special_ids.get("unk", -1)
    inside = (stops >= len(before)) & ~np.isin(owner, owner[is_unknown])
    pieces = np.bincount(owner[inside], minlength=len(words))
    sums = np.zeros((len(words), table.shape[1]))
    np.add.at(sums, owner[inside], table[ids[inside]])
    return sums / np.maximum(pieces, 1)[:, None], pieces


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the cosines [n] of the rows of two arrays [n, D]; 0 if a row is 0.

    Args:
      first: [n, D].
      second: [n, D].
    """
    sizes = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / np.where(sizes > 0, sizes, 1)


def shares(scores: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns for each score the share of the known scores below it, ties by half; 0.5 if unknown.

    Args:
      scores: [n].
      known: [n] bool.
    """
    found = np.full(len(scores), 0.5)
    if known.any():
        found[known] = (stats.rankdata(scores[known]) - 0.5) / known.sum()
    return found.astype(np.float32)


def measure(opened: "Pretrained", items: Sequence[Pair], asked: Asked) -> Measured:
    """Measures a model on word pairs; the request has nothing to choose.

    Raises:
      ValueError: no pair can be scored, or the vectors are not finite.
    """
    from scalelab.lab import tables

    words = sorted({word for pair in items for word in pair.words})
    index = {word: k for k, word in enumerate(words)}
    vectors, pieces = find_vectors(opened, words)
    pairs = np.array([[index[word] for word in pair.words] for pair in items])
    scores, sources = np.array([pair.score for pair in items]), [pair.source for pair in items]
    found, known = cosines(*vectors[pairs.T]), pieces[pairs].all(axis=1)
    if not known.any():
        raise ValueError(f"{opened.path} can score no pair: its tokenizer knows no word of them")
    every, (gold, predicted) = np.ones(len(items), bool), np.zeros((2, len(items)), np.float32)
    groups = {source: np.array(sources) == source for source in dict.fromkeys(sources)}
    for own in groups.values():
        gold[own] = shares(scores[own], every[own])
        predicted[own] = shares(found[own], known[own])
    one = (pieces[pairs] == 1).all(axis=1)
    groups |= {"words of one piece": one} if one.any() and not one.all() else {}
    rows = []
    for name, own in (groups | {"all pairs": every}).items():
        given = gold[own], [(1.0, predicted[own][None, None])], "spearman"
        made = bootstrap.mean_score([given], widen=False)
        rows.append([name, own.sum(), known[own].mean(), made.value, made.low, made.high])
    table = pd.DataFrame(rows, columns=["group", "pairs", "scored", "spearman", "low", "high"])
    several, unknown = int((pieces > 1).sum()), int((~known).sum())
    notes = [f"{several:,} of the {len(words):,} words are several pieces"]
    if unknown:
        notes.append(
            f"{unknown:,} of the {len(known):,} pairs cannot be scored, because the tokenizer does"
            " not know a word: they count as the middle of the ranking"
        )
    shown = [
        [row.group, f"{row.pairs:,}", f"{100 * row.scored:.1f}", f"{row.spearman:.3f}",
         estimates.show_interval(row.low, row.high, ".3f")]
        for row in table.itertuples()
    ]  # fmt: skip
    return Measured(
        texts=[*zip(*(pair.words for pair in items), strict=True)],
        gold=gold,
        outputs=predicted[:, None],
        labels=None,
        recipe="cosine",
        scores={"spearman": metrics.spearman(gold, predicted)},
        table=table,
        printed=tables.plain(["group", "pairs", "% scored", "Spearman", "95% interval"], shown),
        notes=tuple(notes),
        files={
            "cosines.json": [float(x) if own else None for x, own in zip(found, known, strict=True)]
        },
    )


EVALUATION = Evaluation(
    "wordsim", read, measure, "file or folder of word pairs", "wordsim", scratch=True, source=True
)

if __name__ == "__main__":
    suites.run("wordsim")
