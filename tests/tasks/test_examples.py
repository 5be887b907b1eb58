"""Task batches: every example once an epoch, few shapes, any batch by its address."""

from typing import cast

import numpy as np
import pytest

from scalelab.data.tokenizers import Tokenizer
from scalelab.formats import Frame
from scalelab.tasks import batches as task_batches
from scalelab.tasks import files
from scalelab.tasks.batches import BUCKETS, TaskBatches, bucket, evaluation_batches
from scalelab.tasks.examples import (
    Reading,
    TaskExamples,
    assemble,
    digest,
    encode,
    kept_lengths,
    store_of,
)
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Labels


def examples(n: int, num_rows: int = 1, longest: int = 100) -> TaskExamples:
    """Rows whose tokens are all the number of their example, from 1."""
    lengths = np.repeat(np.random.default_rng(0).integers(1, longest + 1, n), num_rows)
    numbers = np.repeat(np.arange(1, n + 1), num_rows)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    arrays = {
        "tokens": np.repeat(numbers, lengths).astype(np.int32),
        "tokens_starts": starts,
        "second_starts": (lengths // 2).astype(np.int32),
    }
    return TaskExamples(
        store_of(arrays), np.arange(1, n + 1, dtype=np.int32), num_rows, np.zeros(n, bool)
    )


@pytest.mark.parametrize("group_batches", [0, 3])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_an_epoch_holds_every_example_once(group_batches: int, num_rows: int) -> None:
    batches = TaskBatches(examples(50, num_rows), 8, 128, 5, group_batches)
    assert batches.steps_per_epoch == 7
    seen = []
    for step in range(7, 14):  # the second epoch
        batch = batches(step)
        real = batch["weights"] == 1
        seen += batch["labels"][real].tolist()
        assert batch["tokens"].shape == (8 * num_rows, batches.length(step))
        assert batch["tokens"].shape[1] in BUCKETS
        by_example = batch["tokens"].reshape(8, num_rows, -1)
        np.testing.assert_array_equal(
            by_example[real][:, :, 0].T, [batch["labels"][real]] * num_rows
        )
        assert not batch["lengths"].reshape(8, num_rows)[~real].any()
        assert batch["lengths"].sum() == batches.num_tokens(step)
        assert len(set(batch["examples"])) == 8 * num_rows
    assert sorted(seen) == list(range(1, 51))
    assert seen != sorted(seen)


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    def make(seed: int) -> TaskBatches:
        return TaskBatches(examples(50), 8, 128, seed, 3)

    forwards = make(1)
    expected = [forwards.ids(t) for t in range(20)]
    backwards = make(1)
    for t in reversed(range(20)):
        np.testing.assert_array_equal(backwards.ids(t), expected[t])
    assert any((make(2).ids(t) != expected[t]).any() for t in range(3))
    assert (np.concatenate(expected[:7]) != np.concatenate(expected[7:14])).any()


def test_sorting_saves_padding() -> None:
    def padded(group_batches: int) -> int:
        batches = TaskBatches(examples(640), 8, 128, 0, group_batches)
        return sum(batches(t)["tokens"].size for t in range(batches.steps_per_epoch))

    assert padded(20) < 0.75 * padded(0)


def test_evaluation_holds_every_example_once() -> None:
    made = examples(45)
    seen, shapes = [], set()
    for ids, batch in evaluation_batches(made, 8, 128):
        real = ids >= 0
        seen += (ids[real] + 1).tolist()
        np.testing.assert_array_equal(batch["labels"][real], ids[real] + 1)
        np.testing.assert_array_equal(batch["weights"], real)
        shapes.add(batch["tokens"].shape)
    assert sorted(seen) == list(range(1, 46))
    assert {rows for rows, _ in shapes} == {8} and len(shapes) <= len(BUCKETS)


def test_buckets() -> None:
    lengths = (1, 8, 9, 16, 17, 97, 100)
    assert [bucket(n, 100) for n in lengths] == [8, 8, 16, 16, 24, 100, 100]
    assert bucket(3, 6) == 6


def test_fewer_buckets_on_an_accelerator(monkeypatch) -> None:
    """Its steps are short whatever the padding, and each length is a program to compile."""
    monkeypatch.setattr(task_batches, "on_accelerator", lambda: True)
    assert [bucket(n, 100) for n in (1, 16, 33, 65, 100)] == [32, 32, 64, 100, 100]
    assert bucket(3, 8) == 8


def test_the_first_examples() -> None:
    part = examples(10, 2).first(4)
    assert len(part) == 4 and part.gather(np.array([3]), 128)["labels"] == [4]
    assert len(examples(10).first(None)) == len(examples(10).first(11)) == 10


class Letters:
    """Stands for a tokenizer: every character is a piece."""

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([ord(letter) for letter in text], np.int32) for text in texts]


def test_other_columns_of_one_file_are_other_rows(tmp_path) -> None:
    """What is cached of one choice of columns is not taken for another's."""
    path = tmp_path / "train.tsv"
    path.write_text("a\tb\tlabel\nx\tyy\t0\nzz\tw\t1\n")

    def rows(*columns: str) -> list[str]:
        read = files.read(path, Columns(columns, "label"), Labels(("0", "1")))
        letters, frame = cast(Tokenizer, Letters()), Frame((1,), (2,), (3,))
        reading = Reading(letters, frame, 9, tmp_path / "cache", "letters")
        made = encode(read.texts, read.labels, reading, both_orders=False)
        return [
            "".join(map(chr, row[:n])) for row, n in zip(
                *(made.gather(np.arange(2), 9)[name] for name in ("tokens", "lengths")), strict=True
            )
        ]  # fmt: skip

    for _ in range(2):  # made, then found
        assert rows("a") == ["\x01x\x03", "\x01zz\x03"]
        assert rows("b") == ["\x01yy\x03", "\x01w\x03"]
        assert rows("a", "b") == ["\x01x\x02yy\x03", "\x01zz\x02w\x03"]
        assert rows("b", "a") == ["\x01yy\x02x\x03", "\x01w\x02zz\x03"]
    assert len(list((tmp_path / "cache").glob("task-*"))) == 4


def test_digests_of_texts() -> None:
    """Where one text ends and the next begins is part of the content."""
    lists = (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["c", "ab"])
    assert len({digest(texts) for texts in lists}) == len(lists)


# --- Rows with special tokens ----------------


def slowly(first: int, second: int, room: int) -> tuple[int, int]:
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_longest_first_truncation() -> None:
    """Against a loop that removes one token at a time."""
    lengths = np.array([(a, b) for a in range(12) for b in range(12)])
    for room in range(1, 24):
        made = kept_lengths(lengths[:, 0], lengths[:, 1], room)
        expected = [slowly(a, b, room) for a, b in lengths]
        np.testing.assert_array_equal(np.stack(made, axis=1), expected)


def test_rows_by_hand() -> None:
    def ids(*lengths: int) -> list[np.ndarray]:
        return [np.arange(10, 10 + n, dtype=np.int32) for n in lengths]

    frame = Frame((1,), (2, 3), (4,))
    pairs = [[1, 10, 11, 2, 3, 10, 4], [1, 10, 11, 12, 2, 3, 10, 11, 4], [1, 2, 3, 10, 4]]
    singles = [[1, 10, 11, 4], [1, 10, 11, 12, 13, 4], [1, 4]]
    for second, most, rows, second_starts in (
        (ids(1, 2, 1), 9, pairs, [5, 6, 3]),
        (None, 6, singles, [4, 6, 2]),
    ):
        made = assemble(ids(2, 5, 0), second, frame, most)
        found = np.split(made["tokens"], made["tokens_starts"][1:-1])
        assert [row.tolist() for row in found] == rows
        assert made["second_starts"].tolist() == second_starts
        assert made["truncated"].tolist() == [False, True, False]
    with pytest.raises(ValueError, match="max_len = 4 "):
        assemble(ids(1), ids(1), frame, 4)
