"""predictions.tsv comes back as it was written; the pictures show what they should."""

import numpy as np
import predicted
import pytest

from scalelab.records import plots, predictions
from scalelab.records.run_files import Unreadable

HEADER = "index\ttext\tgold\tprediction\tprobability"
ODD = [
    "plain", "", "a\tb", "two\nlines", "carriage\r\nreturn", "back\\slash",
    "looks like \\t and \\n", "ends in \\", '"quoted" \u2028 \x85 \x0b 日本', " spaces ",
]  # fmt: skip


@pytest.mark.parametrize("num_texts", [1, 2])
def test_classes_and_scores_come_back_as_they_were(tmp_path, num_texts: int) -> None:
    rng = np.random.default_rng(0)
    labels = ("not\tentailed", "\\t", "entailed")
    texts = [ODD, ODD[::-1]][:num_texts]
    gold = rng.integers(0, 3, len(ODD))
    outputs = rng.normal(0, 5, (len(ODD), 3)).astype(np.float32)
    path = tmp_path / "predictions.tsv"
    predicted.write(path, texts=texts, gold=gold, outputs=outputs, labels=labels)
    found = predictions.read(path)
    assert found.texts == tuple(texts)
    assert found.labels == labels
    np.testing.assert_array_equal(found.gold, gold)
    np.testing.assert_array_equal(found.predicted, outputs.argmax(axis=1))
    assert found.gold.dtype == found.predicted.dtype == np.int32
    assert found.probabilities.dtype == np.float32
    grown = np.exp((outputs - outputs.max(axis=1, keepdims=True)).astype(np.float64))
    shares = (grown / grown.sum(axis=1, keepdims=True)).astype(np.float32)
    np.testing.assert_array_equal(found.probabilities, shares)
    assert [p.name for p in tmp_path.iterdir()] == ["predictions.tsv"]
    # Scores bit for bit.
    gold = rng.random(10).astype(np.float32) * 5
    outputs = rng.normal(0, 1e-5, (10, 1)).astype(np.float32)
    predicted.write(path, texts=texts, gold=gold, outputs=outputs, labels=None)
    found = predictions.read(path)
    np.testing.assert_array_equal(found.gold, gold)
    np.testing.assert_array_equal(found.predicted, outputs[:, 0])
    assert found.labels is None and found.probabilities is None


def test_a_file_by_hand(tmp_path) -> None:
    """log 3 against 0: probabilities 3/4 and 1/4."""
    path, outputs, scores = tmp_path / "x.tsv", np.array([[0.0, np.log(3.0)]]), np.array([[2.5]])
    given = dict(texts=[["a\tb"]], gold=np.array([0]), outputs=outputs, labels=("n", "y"))
    predicted.write(path, **given)
    row = "0\ta\\tb\tn\ty\t0.75\t0.25\t0.75"
    assert path.read_text() == f"{HEADER}\tp:n\tp:y\n{row}\n"
    predicted.write(path, texts=[["a"], ["b"]], gold=np.array([5.0]), outputs=scores, labels=None)
    header = HEADER.replace("text", "text1\ttext2")
    assert path.read_text() == f"{header}\n0\ta\tb\t5.0\t2.5\t\n"


@pytest.mark.parametrize("content", [
    "sentence\tlabel\nx\t1\n", "", f"{HEADER}\n0\ta\t1.0\n", f"{HEADER}\n0\ta\tx\t1.0\t\n",
    f"{HEADER}\n0\ta\tnan\t1.0\t\n", f"{HEADER}\tp:0\n0\ta\t1\t0\t1.0\t1.0\n",
])  # fmt: skip
def test_another_table_is_refused(tmp_path, content: str) -> None:
    path = tmp_path / "predictions.tsv"
    path.write_text(content)
    with pytest.raises(Unreadable) as raised:
        predictions.read(path)
    assert raised.value.path == path


def test_another_archive_is_refused(tmp_path) -> None:
    path = tmp_path / "predictions.npz"
    gold = np.array([0, 1])
    outputs = np.eye(2, dtype=np.float32)
    table = tmp_path / "predictions.tsv"
    predicted.write(table, texts=[["a", "b"]], gold=gold, outputs=outputs, labels="01")
    predictions.pack(path, predictions.read(table))
    np.testing.assert_array_equal(predictions.read(path).gold, gold)
    arrays = dict(np.load(path))
    for name, value in (
        ("gold", np.zeros((2, 2), np.uint8)), ("predicted", np.array([0, 7], np.uint8)),
        ("labels", np.array(["0"])), ("gold", np.array([{}, {}], object)),
    ):  # fmt: skip
        np.savez(path, **(arrays | {name: value}))
        with pytest.raises(Unreadable):
            predictions.read(path)
    with pytest.raises(Unreadable):
        predictions.read(tmp_path / "absent.npz")


def test_a_confusion_matrix(tmp_path) -> None:
    path = tmp_path / "predictions.png"
    gold, predicted = np.array([0, 0, 0, 1, 2]), np.array([0, 0, 1, 1, 0])
    counts = plots.draw_predictions(
        path, gold=gold, predicted=predicted, labels=("a", "b", "c"), title="t"
    )
    assert counts.tolist() == [[2, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [p.name for p in tmp_path.iterdir()] == ["predictions.png"]


def test_what_is_drawn_depends_on_what_is_predicted(tmp_path) -> None:
    gold, classes, path = np.array([0.0, 2.5, 5.0]), np.array([0, 1]), tmp_path / "predictions.png"
    pictures = set()
    for a, b, labels in (
        (gold, gold, None), (gold, gold[::-1], None), (classes, classes, ("0", "1"))
    ):  # fmt: skip
        plots.draw_predictions(path, gold=a, predicted=b, labels=labels, title="t")
        pictures.add(path.read_bytes())
    assert len(pictures) == 3 and {p[:8] for p in pictures} == {b"\x89PNG\r\n\x1a\n"}
