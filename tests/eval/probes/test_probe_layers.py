"""Probes: against scikit-learn, planted layers, chunks by hand, and the programs."""

import lzma
import pathlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
from task_folders import read_seed

from scalelab.eval import compare
from scalelab.eval.probes import classifier, dep, engine, layers, pos, spans
from scalelab.eval.probes.classifier import Classifier
from scalelab.eval.probes.layers import Examples
from scalelab.tasks.treebank import Sentence


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_scikit_learn_has_the_same_regression(rng) -> None:
    """Probabilities to 1e-3, on examples that weights and biases both matter for."""
    from sklearn.linear_model import LogisticRegression

    x = rng.normal(size=(300, 6)).astype(np.float32)
    gold = (x @ rng.normal(size=(6, 4)) + [1, 0, 0, -1] + rng.gumbel(size=(300, 4))).argmax(1)
    probe = Classifier(1, 6, None, 4)
    flat = probe.fit(x[None], gold.astype(np.int32))
    scores = probe.scores(flat, x[None])
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    errors = {
        c: np.abs(LogisticRegression(C=c, tol=1e-8).fit(x, gold).predict_proba(x) - chances).max()
        for c in (1.0, 0.25)
    }
    assert errors[1.0] < 1e-3 < errors[0.25]  # the second has another penalty
    assert probe.shares(flat).tolist() == [1.0]


def test_a_hidden_layer_solves_what_no_line_does(rng) -> None:
    x = rng.normal(size=(1, 400, 2)).astype(np.float32)
    gold = (x[0, :, 0] * x[0, :, 1] > 0).astype(np.int32)
    probes = [Classifier(1, 2, hidden, 2) for hidden in (None, 16)]
    right = [(own.scores(own.fit(x, gold), x).argmax(1) == gold).mean() for own in probes]
    assert right[0] < 0.65 and right[1] > 0.95


def test_train_alone_sets_mean_and_deviation(rng) -> None:
    splits = [rng.normal(3, 2, size=(2, 50, 3)), np.full((2, 1, 3), 3.0)]
    splits[0][:, :, 1] = 7  # no deviation
    train, other = classifier.standardize(splits)
    np.testing.assert_allclose(train.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(train[:, :, [0, 2]].std(axis=1), 1, atol=1e-6)
    assert np.abs(other[:, :, [0, 2]]).max() < 0.5


NUM_TYPES, SIZES = 40, (600, 300, 299)


def plant(num: int, at: int, *, by_type: bool) -> Examples:
    """Noise at three layers; layer `at` shows the label, or the word type, which has no part."""
    rng = np.random.default_rng([num, at])
    types, labels = rng.integers(NUM_TYPES, size=num), rng.choice(3, num, p=[0.6, 0.3, 0.1])
    features = rng.normal(size=(3, num, NUM_TYPES)).astype(np.float32)
    features[at] += 12 * np.eye(NUM_TYPES)[types if by_type else labels]
    named = [f"w{k}" for k in types]
    return Examples(features, [f"l{k}" for k in labels], named, named, named)


def rows(table: pd.DataFrame) -> dict[Any, dict[Any, Any]]:
    """The rows of a table by their layer."""
    return {str(row["layer"]): row for row in table.to_dict("records")}


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_planted_layer_is_found(at: int) -> None:
    made = layers.probe([plant(num, at, by_type=False) for num in SIZES], None)
    table = rows(made.table)
    found = table.pop(str(at))
    assert made.layer == at and found["accuracy"] > 0.98
    assert max(row["accuracy"] for row in table.values()) < 0.7
    assert found["selectivity"] > 0.2 and found["weight"] > 0.9
    assert found["low"] < found["accuracy"] < found["high"] + 1e-9
    center, expected = layers.profile(*made.table[["mixed", "weight"]].to_numpy()[:3].T)
    assert center == pytest.approx(at, abs=0.1)
    assert at == 0 or expected == pytest.approx(at, abs=0.1)
    assert (made.outputs.argmax(axis=1) == made.gold).mean() == found["accuracy"]


def test_a_probe_that_remembers_words_is_not_selective() -> None:
    table = rows(layers.probe([plant(num, 1, by_type=True) for num in SIZES], None).table)
    assert table["1"]["control"] > 0.95 and table["1"]["selectivity"] < 0
    assert table["0"]["control"] < 0.8


def test_context_shows_in_ambiguous_words() -> None:
    """Layer 0 has the word, layer 1 also its label; half of the types have a label of their own."""
    splits = []
    for num in SIZES:
        rng = np.random.default_rng(num)
        types, drawn = rng.integers(NUM_TYPES, size=num), rng.integers(3, size=num)
        labels = np.where(types % 2, types % 3, drawn)
        features = rng.normal(size=(2, num, NUM_TYPES + 3)).astype(np.float32)
        features[:, :, 3:] += 12 * np.eye(NUM_TYPES)[types]
        features[1, :, :3] += 12 * np.eye(3)[labels]
        named = [f"w{k}" for k in types]
        splits.append(Examples(features, [f"l{k}" for k in labels], named, named, named))
    table = rows(layers.probe(splits, None).table)
    for name in ("0", "by word"):
        assert table[name]["one label"] > 0.98 and table[name]["ambiguous"] < 0.45
    assert table["1"]["one label"] > 0.98 and table["1"]["ambiguous"] > 0.95
    sets = layers.word_sets([["a", "a", "b"], [], ["b", "a", "new"]], np.array([0, 1, 1]))
    assert {name: own.tolist() for name, own in sets.items()} == {
        "one label": [True, False, False], "ambiguous": [False, True, False]
    }  # fmt: skip


def test_interrupted_probes_continue(tmp_path, stop_at) -> None:
    """No probe is trained twice, and the results are the same."""
    splits = [plant(num, 1, by_type=False) for num in SIZES]
    whole, calls = layers.probe(splits, None), stop_at(Classifier, "fit", 4)
    with pytest.raises(KeyboardInterrupt):
        layers.probe(splits, None, tmp_path / "x/partial.npz")
    made = layers.probe(splits, None, tmp_path / "x/partial.npz")
    assert len(calls) == 1 + 8  # 3 layers, their controls, 2 mixtures; one started twice
    pd.testing.assert_frame_equal(made.table, whole.table)
    np.testing.assert_array_equal(made.outputs, whole.outputs)


def test_control_labels_belong_to_types(rng) -> None:
    gold = rng.choice(3, 4000, p=[0.5, 0.3, 0.2]).astype(np.int32)
    types = [[f"t{k}" for k in range(3000)], ["t7", "new", "t7"]]
    train, other = layers.control_labels(types, gold)
    assert other[0] == other[2] == train[7] and other[1] in (0, 1, 2)
    np.testing.assert_allclose(np.bincount(train) / 3000, [0.5, 0.3, 0.2], atol=0.03)
    assert [x.tolist() for x in layers.control_labels(types, gold)] == [
        train.tolist(),
        other.tolist(),
    ]


def test_baselines_and_profile_by_hand() -> None:
    made = layers.baselines([["a", "a", "b", "a", "c"], ["b", "a", "x"]], np.array([1, 1, 0, 0, 1]))
    assert {name: split.tolist() for name, (split,) in made.items()} == {
        "majority": [1, 1, 1], "by word": [0, 1, 1]
    }  # fmt: skip
    weights = np.array([0.2, 0.3, 0.5])
    assert layers.profile(np.array([0.5, 0.7, 0.8]), weights) == pytest.approx((1.3, 4 / 3))
    assert np.isnan(layers.profile(np.array([0.5, 0.4, 0.5]), weights)[1])


def split(text: str) -> list[str]:
    return text.split()


SENTENCE = Sentence(
    split("The two old men have not really seen New York because of it , so ."),
    split("DET NUM ADJ NOUN AUX PART ADV VERB PROPN PROPN ADP ADP PRON PUNCT ADV PUNCT"),
    [4, 4, 4, 8, 8, 8, 8, 0, 8, 9, 13, 11, 8, 8, 8, 8],
    split(
        "det nummod amod nsubj aux advmod advmod root obj flat case fixed obl punct advmod punct"
    ),
    [True] * 16,
)


def test_examples_by_hand() -> None:
    assert pos.find(SENTENCE)[:2] == [((0,), "DET"), ((1,), "NUM")]
    arcs = dep.find(SENTENCE)
    assert len(arcs) == 15 and arcs[0] == ((3, 0), "det") and arcs[7] == ((7, 8), "obj")
    possessive = SENTENCE._replace(deprels=["det:x", *SENTENCE.deprels[1:]])
    assert dep.find(possessive)[0] == ((3, 0), "det")
    # "have not" belongs to "seen", but an adverb stands between.
    assert spans.chunks(SENTENCE) == [
        ((0, 3), "NP"), ((7, 7), "VP"), ((6, 6), "ADVP"), ((8, 9), "NP"), ((10, 11), "PP"),
        ((12, 12), "NP"), ((14, 14), "ADVP"),
    ]  # fmt: skip


def test_spans_that_are_no_chunks() -> None:
    many = [SENTENCE._replace(words=[f"w{k}", *SENTENCE.words[1:]]) for k in range(200)]
    found = [spans.find(sentence) for sentence in many]
    others = [span for own in found for span, label in own if label == spans.NONE]
    known = {span for span, _ in spans.chunks(SENTENCE)}
    assert not known & set(others) and {b - a for a, b in others} <= {1, 2, 4}
    assert 0.13 < len(others) / (7 * 200) < 0.19
    assert found == [spans.find(sentence) for sentence in many]


def test_features_of_spans_and_arcs() -> None:
    first, last = np.array([[1.0, 2.0]]), np.array([[3.0, 5.0]])
    assert spans.join([first, last]).tolist() == [[1, 2, 3, 5, 3, 10, -2, -3]]
    assert dep.join([first, last]).tolist() == [[1, 2, 3, 5]]


def test_clusters(rng) -> None:
    labels = rng.integers(10, size=500)
    points = 20 * np.eye(10)[labels] + rng.normal(size=(500, 10))
    assert spans.cluster(points, labels.astype(str).tolist()) == pytest.approx(1.0)
    assert spans.cluster(points, rng.permutation(labels).astype(str).tolist()) < 0.1
    assert spans.cluster(points[:3], ["a", "b", "c"]) == 1.0  # fewer spans than clusters


NOUNS, VERBS = "dog cat house river town".split(), "sees likes knows".split()


def conllu(count: int, seed: int) -> str:
    """Sentences "The small dog sees a cat." and "dog likes cat."."""
    rng, text = np.random.default_rng(seed), ""
    for _ in range(count):
        a, b, v = rng.choice(NOUNS), rng.choice(NOUNS), rng.choice(VERBS)
        rows = [("The", "DET", 2, "det"), (a, "NOUN", 3, "nsubj"), (v, "VERB", 0, "root"),
                ("a", "DET", 5, "det"), (b, "NOUN", 3, "obj")]  # fmt: skip
        if rng.random() < 0.3:
            rows = [(a, "NOUN", 2, "nsubj"), (v, "VERB", 0, "root"), (b, "NOUN", 2, "obj")]
        for k, (word, tag, head, relation) in enumerate(rows, 1):
            text += f"{k}\t{word}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_\n"
        text += "\n"
    return text


@pytest.fixture
def data(tmp_path) -> pathlib.Path:
    for seed, split in enumerate(("train", "dev", "test")):
        text = conllu(40, seed)
        if split == "test":
            text += "".join(f"{k}\tword\t_\tX\t_\t_\t{k - 1}\tdep\t_\t_\n" for k in range(1, 99))
        (tmp_path / f"x-ud-{split}.conllu").write_text(text)
    plain = tmp_path / "x-ud-train.conllu"
    plain.with_suffix(".conllu.xz").write_bytes(lzma.compress(plain.read_bytes()))
    plain.unlink()
    return tmp_path


@pytest.fixture(autouse=True)
def few_steps(monkeypatch) -> None:
    """Of programs; the probes of other tests are asked for directly."""
    monkeypatch.setattr(classifier, "MAX_STEPS", 50)


@pytest.mark.parametrize("program", [pos, pytest.param(dep, marks=pytest.mark.slow), spans])
def test_from_a_treebank_to_paired_differences(
    pretrained_runs, data, tmp_path, start, program
) -> None:
    asked = [("a", "bert"), ("b", "gpt2", "--random")]
    for name, system, *more in asked if program is pos else asked[:1]:
        given = f"--run={pretrained_runs(system)}", f"--data={data}", f"--workdir={tmp_path / name}"
        code, out, errors = start(program, *given, *more)
        assert code == 0, errors
        assert "1 sentences" in out and "selectivity" in out and "center of gravity" in out
        again = start(program, *given, *more)
        assert again[0] == 0 and "finished before" in again[1]
    folder = tmp_path / "a/seed0"
    result, made = read_seed(tmp_path / "a")
    table = rows(pd.read_csv(folder / "groups.tsv", sep="\t"))
    assert (result.task, result.recipe) == (program.EVALUATION.name, "linear, mean")
    accuracy = result.eval["dev"]["accuracy"]
    assert accuracy == (made.gold == made.predicted).mean() > table["majority"]["accuracy"]
    best = max("01", key=lambda layer: table[layer]["dev"])
    assert accuracy == pytest.approx(table[best]["accuracy"], abs=1e-6)
    assert ("nmi" in table["0"]) == (program is spans)
    if program is pos:
        systems = [compare.open_system(str(tmp_path / name)) for name in "ab"]
        frame, _ = compare.compare(*systems, allow_recipe=True)
        assert list(frame["task"]) == ["probes.pos"]
        assert read_seed(tmp_path / "b")[0].init == "none"


def test_options(pretrained_runs, data, tmp_path, start, refused) -> None:
    run = f"--run={pretrained_runs('bert')}", f"--data={data}"
    given = ("--probe=mlp", "--pooling=first", "--max_words=50")
    code, out, errors = start(pos, *run, f"--workdir={tmp_path / 'w'}", *given)
    assert code == 0, errors
    assert "mlp probes, first of a word's pieces, " in out
    train = engine.treebank.read(data, "train")
    for most in (1, 50, 10**6):
        used = engine.thin(train, most)
        words = min(max(most, engine.num_words(train[:1])), engine.num_words(train))
        assert engine.num_words(used) == pytest.approx(words, rel=0.2)
        assert most != 50 or train.index(used[-1]) > len(train) / 2
    for wrong, expected in (
        ("--probe=tree", "linear or mlp"),
        ("--pooling=max", "first, last"),
        ("--max_words=0", "words"),
    ):
        assert expected in refused(pos, *run, f"--workdir={tmp_path / 'x'}", wrong)
    roots = "1\tYes\t_\tINTJ\t_\t_\t0\troot\t_\t_\n"
    (data / "x-ud-dev.conllu").write_text(roots)
    assert "dev has no example to label" in refused(dep, *run, f"--workdir={tmp_path / 'x'}")
    (data / "x-ud-dev.conllu").write_text("The house\n")
    assert "line 1" in refused(dep, *run, f"--workdir={tmp_path / 'x'}")
