"""Structural probes: a sentence by hand, scipy, planted trees, and the programs."""

import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
import test_states
from scipy import stats
from task_folders import read_seed

from scalelab.eval import likelihood
from scalelab.eval.probes import depth, distance, heads, structural, trees
from scalelab.eval.probes.states import Split
from scalelab.tasks.treebank import Sentence

# chef <- The; ran <- chef, out; out <- store; ran <- "."
CHEF = Sentence(
    ["The", "chef", "ran", "out", "."], ["DET", "NOUN", "VERB", "ADV", "PUNCT"], [2, 3, 0, 3, 3],
    ["det", "nsubj", "root", "advmod", "punct"], [True] * 5,
)  # fmt: skip


def random_sentence(rng: np.random.Generator, num_words: int) -> Sentence:
    """A random tree; every fifth word or so is punctuation, and a leaf."""
    order = rng.permutation(num_words)
    tree = [0] * num_words
    for k, word in enumerate(order[1:], 1):
        tree[word] = int(order[rng.integers(k)]) + 1
    leaves = set(range(1, num_words + 1)) - set(tree)
    upos = ["PUNCT" if k + 1 in leaves and rng.random() < 0.3 else "X" for k in range(num_words)]
    words = [f"w{k}" for k in range(num_words)]
    return Sentence(words, upos, tree, ["dep" if h else "root" for h in tree], [True] * num_words)


def test_a_sentence_by_hand() -> None:
    expected = [[0, 1, 2, 3, 3], [1, 0, 1, 2, 2], [2, 1, 0, 1, 1], [3, 2, 1, 0, 2], [3, 2, 1, 2, 0]]
    gold = trees.edges_between(CHEF.heads)
    assert gold.tolist() == expected
    assert trees.depths(CHEF.heads).tolist() == [2, 1, 0, 1, 1]
    # "out" comes close to "." and then to "The": its edge to "ran" is lost, that to "." is no edge.
    found = gold.astype(float)
    found[3, 4] = found[4, 3] = 0.1
    edges = ["1 The, 2 chef", "2 chef, 3 ran", "3 ran, 4 out"]
    assert trees.DISTANCE.judge(found, CHEF) == dict.fromkeys(edges, True)
    found[0, 3] = found[3, 0] = 0.2
    judged = dict(zip(edges, [True, True, False], strict=True))
    assert trees.DISTANCE.judge(found, CHEF) == judged
    assert trees.DISTANCE.judge(trees.DISTANCE.chain(5), CHEF) == dict.fromkeys(edges, True)
    # "." has the least depth, and cannot be the root; then "The" has.
    assert trees.DEPTH.judge(np.array([2.0, 1.0, 0.5, 1.0, 0.0]), CHEF) == {CHEF.text.strip(): True}
    assert trees.DEPTH.judge(trees.DEPTH.chain(5), CHEF) == {CHEF.text.strip(): False}
    alone = Sentence(["Yes", "."], ["X", "PUNCT"], [0, 1], ["root", "punct"], [True] * 2)
    for probe in trees.PROBES.values():
        assert probe.judge(probe.target(alone.heads), alone) == {}


def test_trees_and_ranks_are_those_of_other_algorithms() -> None:
    """Prim's algorithm, and scipy's correlation, whose rows are taken one by one."""
    rng = np.random.default_rng(0)
    for num in (2, 3, 9):
        x = rng.permutation(num * num).reshape(num, num) - 5.0
        x = np.triu(x, 1) + np.triu(x, 1).T
        inside, edges = {0}, set()
        while len(inside) < num:
            _, i, j = min((x[i, j], i, j) for i in inside for j in set(range(num)) - inside)
            inside.add(j)
            edges.add((min(i, j), max(i, j)))
        assert trees.spanning_tree(x) == edges
    gold, found = rng.integers(0, 4, (2, 7, 9))
    expected = [np.asarray(stats.spearmanr(a, b))[0] for a, b in zip(gold, found, strict=True)]
    np.testing.assert_allclose(trees.rank_correlations(gold, found), expected)
    assert trees.rank_correlations(gold[0], np.ones(9)).tolist() == [0.0]


def test_correlations_are_means_over_lengths() -> None:
    """Lengths below 5 and above 50 have no part in them."""
    given = [([1.0, -1.0], 6), ([0.5], 8), ([-1.0], 4), ([-1.0], 51)]
    sentences, found = [], []
    for signs, num in given:
        for sign in signs:
            sentences.append(Sentence(["a"] * num, ["X"] * num, [*range(num)], [], [True] * num))
            found.append(np.arange(num) * np.sign(sign))
    score = trees.score(trees.DEPTH, sentences, found)
    assert score.correlation == pytest.approx((0.0 + 1.0) / 2)


def make_split(sentences: list[Sentence], vectors: np.ndarray) -> Split:
    return Split(sentences, np.arange(len(sentences)), vectors)


def plant(sentences: list[Sentence], width: int, mix: np.ndarray) -> np.ndarray:
    """States in which every edge has a direction of its own: [num_words, D]."""
    rows = []
    for sentence in sentences:
        for word in range(len(sentence.words)):
            own, at = np.zeros(width), word
            while sentence.heads[at]:
                own[at] = 1.0
                at = sentence.heads[at] - 1
            rows.append(mix @ own)
    return np.array(rows)


@pytest.mark.parametrize("kind", trees.PROBES)
def test_planted_trees_are_found(kind: str) -> None:
    """In the layer that has them, and not in noise; by the known map exactly."""
    rng, width = np.random.default_rng(1), 12
    sentences = [random_sentence(rng, int(n)) for n in rng.integers(2, width + 1, 300)]
    mix = np.linalg.qr(rng.normal(size=(width, width)))[0] * np.linspace(1.5, 6.0, width)
    planted = plant(sentences, width, mix)
    states = np.stack([rng.normal(size=planted.shape), planted], axis=1).astype(np.float32)
    probe = trees.PROBES[kind]
    split = make_split(sentences, states)
    targets = [probe.target(sentence.heads) for sentence in sentences]

    def score(maps: np.ndarray) -> list[trees.Score]:
        made = structural.predict(probe, split, maps)
        return [trees.score(probe, sentences, own) for own in made]

    known = np.stack([np.linalg.inv(mix)] * 2).astype(np.float32)
    noise, exact = score(known)
    assert exact.hits.all() and noise.hits.mean() < 0.4
    made = [x.round(3) for x in structural.predict(probe, split, known)[1]]  # ties as in gold
    rounded, gold = (np.concatenate(x, axis=None) for x in (made, targets))
    np.testing.assert_array_equal(rounded, gold)
    assert trees.score(probe, sentences, made).correlation == pytest.approx(1.0)
    noise, fitted = score(structural.fit(probe, split, rank=99, epochs=60))
    assert fitted.hits.mean() > 0.99 and fitted.correlation > 0.9
    assert noise.hits.mean() < 0.4 and noise.correlation < 0.5


def test_an_interrupted_fit_continues(tmp_path, monkeypatch, stop_at) -> None:
    """With the same maps, bit for bit, and without the steps that were saved."""
    rng = np.random.default_rng(4)
    sentences = [random_sentence(rng, int(n)) for n in rng.integers(2, 9, 60)]
    states = rng.normal(size=(sum(len(s.words) for s in sentences), 2, 5)).astype(np.float32)
    split = make_split(sentences, states)
    whole = structural.fit(trees.DEPTH, split, rank=3, epochs=3)
    steps, path = stop_at(structural, "_fill", 5), tmp_path / "partial.npz"
    monkeypatch.setattr(likelihood, "SAVE_SECS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        structural.fit(trees.DEPTH, split, rank=3, epochs=3, partial=path)
    made = structural.fit(trees.DEPTH, split, rank=3, epochs=3, partial=path)
    assert len(steps) == 1 + 9
    np.testing.assert_array_equal(made, whole)


@pytest.mark.parametrize("kind", trees.PROBES)
def test_the_loss_by_loops(kind: str) -> None:
    """Padding and empty rows do not count; a sentence counts as much as any other."""
    rng, probe, lengths = np.random.default_rng(2), trees.PROBES[kind], [5, 3, 0]
    sentences = [CHEF, random_sentence(rng, 3)]
    states = rng.normal(size=(8, 2, 4)).astype(np.float32)
    maps = rng.normal(size=(2, 3, 4)).astype(np.float32)
    split = make_split(sentences, states)
    targets, starts = [probe.target(s.heads) for s in sentences], split.starts
    found, gold, lengths = structural._fill(split, starts, targets, np.arange(2), 6)
    expected = 0.0
    for layer in range(2):
        for k, sentence in enumerate(sentences):
            own = states[starts[k] : starts[k + 1], layer] @ maps[layer].T
            pairs = [(a, b) for a in range(len(own)) for b in range(len(own))]
            far, deep = trees.edges_between(sentence.heads), trees.depths(sentence.heads)
            if kind == "distance":
                errors = [abs(((own[a] - own[b]) ** 2).sum() - far[a, b]) for a, b in pairs]
            else:
                errors = [abs((x**2).sum() - y) for x, y in zip(own, deep, strict=True)]
            expected += np.mean(errors) / len(sentences)
    made = structural.loss(probe.predict, *map(jnp.asarray, (maps, found, gold, lengths)))
    assert float(made) == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def treebank(tmp_path) -> pathlib.Path:
    rng, folder = np.random.default_rng(3), tmp_path / "treebank"
    for split, num in (("train", 40), ("dev", 8), ("test", 9)):
        made = [random_sentence(rng, n % 6 + 1) for n in range(num)]
        rows = [
            [test_states.line(k, form, head, upos=upos, rel=rel)
             for k, (form, upos, head, rel, _) in enumerate(zip(*own, strict=True), 1)]
            for own in made
        ]  # fmt: skip
        test_states.write(folder, "\n".join(map("".join, rows)), split)
    return folder


@pytest.mark.parametrize(("program", "system"), [
    (distance, "gpt2"), (depth, "bert"), (heads, "gpt2"),
    pytest.param(heads, "albert", marks=pytest.mark.slow),
])  # fmt: skip
def test_programs(
    pretrained_runs, treebank, tmp_path, start, refused, program, system: str
) -> None:
    given = [f"--run={pretrained_runs(system)}", f"--data={treebank}"]
    more = ["--epochs=1", "--rank=3"] if program is not heads else []
    code, out, errors = start(program, *given, *more, f"--workdir={tmp_path}/a")
    assert code == 0, errors
    result, made = read_seed(tmp_path / "a")
    assert result.task == program.EVALUATION.name
    assert result.eval["dev"]["hits"] == made.predicted.mean() < 1
    assert set(made.gold) == {1} and f"{100 * made.predicted.mean():.1f} [" in out
    random = "--random", *more, f"--workdir={tmp_path}/b"
    assert start(program, *given, *random)[0] == 0
    assert "conllu" in refused(program, given[0], f"--data={tmp_path}", f"--workdir={tmp_path}/c")
