"""Word similarity: numpy's cosines and scipy's ranks, planted vectors, unknown words."""

import dataclasses
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
import scipy.stats
from flax.traverse_util import flatten_dict, unflatten_dict
from task_folders import read_seed
from test_sentence_scores import opened_run

from scalelab.eval import compare, evaluation, wordsim
from scalelab.tasks import metrics

WORDS = ["bada", "gedu", "dodo", "unbada", "dodogedu", "zuna", "gadu", "bodo"]
PAIRS = [*itertools.combinations(WORDS, 2)]
ASKED = evaluation.Asked(None, pathlib.Path(), {})
INPUT, OUTPUT = "embed/tokens/table", "output_embed/table"


def plant(opened: Any, path: str = INPUT) -> Any:
    """The run with vectors of very different lengths in a table."""
    flat, rng = flatten_dict(opened.params, sep="/"), np.random.default_rng(0)
    shape = flat[path].shape
    flat[path] = (rng.normal(size=shape) * 10 ** rng.uniform(-1, 1, (shape[0], 1))).astype("f")
    return dataclasses.replace(opened, params=unflatten_dict(flat, sep="/"))


def by_hand(opened: Any, path: str = INPUT, *, norms: bool = True) -> np.ndarray:
    """The cosines of PAIRS, a word at a time; `norms` False: products of the vectors."""
    table = np.asarray(flatten_dict(opened.params, sep="/")[path], np.float64)

    def vector(word: str) -> np.ndarray:
        before, whole = opened.tokenizer.encode("a"), opened.tokenizer.encode(f"a {word}")
        found = np.mean([table[i] for i in whole[len(before) :]], axis=0)
        return found / np.linalg.norm(found) if norms else found

    return np.array([vector(a) @ vector(b) for a, b in PAIRS])


def judged(scores: np.ndarray, source: str = "ws") -> list[wordsim.Pair]:
    return [wordsim.Pair(source, pair, float(x)) for pair, x in zip(PAIRS, scores, strict=True)]


@pytest.mark.parametrize("system", ["word2vec", "gpt2", "t5"])
def test_it_is_scipys_correlation_of_numpys_cosines(pretrained_runs, system: str) -> None:
    """Products without norms, and the table that scores tokens, have other correlations."""
    opened = opened_run(pretrained_runs(system))
    path = opened.net.TOKEN_TABLE
    opened, scores = plant(opened, path), np.random.default_rng(1).integers(0, 20, len(PAIRS)) / 2
    made = wordsim.measure(opened, judged(scores), ASKED)
    row, cosines = made.table.iloc[-1], by_hand(opened, path)
    np.testing.assert_allclose(made.files["cosines.json"], cosines, atol=1e-12)
    expected = scipy.stats.spearmanr(cosines, scores).statistic
    assert row["spearman"] == pytest.approx(expected, abs=1e-6)
    assert made.scores["spearman"] == pytest.approx(expected, abs=1e-6)
    wrong = [by_hand(opened, path, norms=False)]
    wrong += [by_hand(opened, OUTPUT)] if system == "word2vec" else []
    for values in wrong:
        assert abs(scipy.stats.spearmanr(values, scores).statistic - expected) > 0.02
    assert row["low"] < expected < row["high"] and row["scored"] == 1


def test_files_of_other_scales_are_ranked_apart(pretrained_runs) -> None:
    """Scores that follow the cosines have 1, in both files and together; turned around, -1."""
    opened = plant(opened_run(pretrained_runs("word2vec")))
    cosines = by_hand(opened)
    both = judged(cosines, "low") + judged(100 + 50 * cosines, "high")
    for sign in (1, -1):
        made = wordsim.measure(opened, [p._replace(score=sign * p.score) for p in both], ASKED)
        assert made.table["spearman"].tolist() == pytest.approx([sign] * len(made.table))
        assert {"low", "high", "all pairs"} <= {*made.table["group"]}
    pieces = [len(opened.tokenizer.encode(f"a {word}")) - 1 for word in WORDS]
    assert f"{sum(n > 1 for n in pieces)} of the {len(WORDS)} words are several" in made.notes[0]


def test_the_program(pretrained_runs, tmp_path, start, refused) -> None:
    """Unknown words take the middle; a folder's analogies are left alone; two runs compare."""
    data, lines = tmp_path / "data", [f"{a}\t{b}\t{k}\r\n" for k, (a, b) in enumerate(PAIRS)]
    data.mkdir()
    (data / "ws.txt").write_text("".join(lines) + "bada\t\u4e00\u4e01\t7\n")
    (data / wordsim.ANALOGIES).write_text(": capitals\nAthens Greece Oslo Norway\n")
    given = f"--run={pretrained_runs('bert')}", f"--data={data}"
    for work, more in (("a", ()), ("b", ("--random",))):
        code, out, errors = start(wordsim, *given, f"--workdir={tmp_path / work}", *more)
        assert code == 0, errors
        assert "1 of the 29 pairs cannot be scored" in out and "words are several pieces" in out
    result, made = read_seed(tmp_path / "a")
    assert made.labels is None and len(made.gold) == 29 and made.predicted[-1] == 0.5
    assert result.eval["dev"] == {"spearman": metrics.spearman(made.gold, made.predicted)}
    code, out, errors = start(compare, tmp_path / "a", tmp_path / "b", "--allow")
    assert code == 0 and "word similarity" in out, errors
    (data / "ws.txt").write_text("bada\t\u4e00\t7\nbada\t\u4e01\t8\n")
    assert "knows no word" in refused(wordsim, *given, f"--workdir={tmp_path / 'c'}")
