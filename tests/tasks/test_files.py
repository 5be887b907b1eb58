"""Task files: rows are what was written, and every fault is named by file and place."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from scalelab.tasks import files
from scalelab.tasks.files import Columns, read
from scalelab.tasks.records import Labels, Records

PAIR = Columns(("first", "second"), "label")
SINGLE = Columns(("text",), "label")
BARE = Columns((3,), 1, 4)
YES_NO = Labels(("no", "yes"))
SCORES = Labels(score_range=(0.0, 5.0))


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "dev.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows(records: Records) -> list:
    labels = [None] * len(records) if records.labels is None else records.labels.tolist()
    return [*zip(*records.texts, labels, strict=True)]


@pytest.mark.parametrize("end", ["", "\n"], ids=["no newline at the end", "newline"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte-order mark"])
def test_columns_are_found_by_name_wherever_they_stand(tmp_path, end, mark):
    path = written(
        tmp_path,
        f"{mark}label\tid\tsecond\tgenre\tfirst\n"
        "yes\t0\ta dog\tx\tan animal\n"
        f"no\t1\ta cat\ty\ta tree{end}",
    )
    records = read(path, PAIR, YES_NO)
    assert rows(records) == [("an animal", "a dog", 1), ("a tree", "a cat", 0)]
    assert records.labels is not None and records.labels.dtype == np.int32
    assert records.source == str(path)
    assert records.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_no_header(tmp_path):
    path = written(tmp_path, "src\tyes\t\tIt rains.\nsrc\tno\t*\tRains it.")
    assert rows(read(path, BARE, YES_NO)) == [("It rains.", 1), ("Rains it.", 0)]


def test_a_set_without_labels(tmp_path):
    path = written(tmp_path, "index\ttext\n0\thello\n1\tyou\n")
    records = read(path, Columns(("text",)), YES_NO)
    assert records.texts == (["hello", "you"],)
    assert records.labels is None
    assert len(records) == 2


@pytest.mark.parametrize(
    "text",
    ['"open', 'a "b" c', '"', "'x", "a\u2028b", "a\x85b", "a\x0bb\x0cc", "a\x1cb\x1db\x1e", "a\rb"],
)
def test_quotes_and_odd_line_ends_are_ordinary_characters(tmp_path, text):
    path = written(tmp_path, f"text\tlabel\n{text}\tyes\nplain\tno\n")
    assert rows(read(path, SINGLE, YES_NO)) == [(text, 1), ("plain", 0)]


def test_white_space_in_a_text_is_kept(tmp_path):
    path = written(tmp_path, "first\tsecond\tlabel\n a \t\tyes\n\u00a0\t \tno\nx\ty\tno\n")
    records = read(path, PAIR, YES_NO)
    assert rows(records) == [(" a ", "", 1), ("\u00a0", " ", 0), ("x", "y", 0)]


def test_scores(tmp_path):
    path = written(tmp_path, "text\tlabel\na\t0\nb\t5.000\nc\t3.25\n")
    labels = read(path, SINGLE, SCORES).labels
    assert labels is not None and labels.dtype == np.float32
    assert labels.tolist() == [0.0, 5.0, 3.25]
    path = written(tmp_path, "text\tlabel\na\t-7e2\n")
    assert rows(read(path, SINGLE, Labels())) == [("a", -700.0)]


BAD_SCORES = ("5.1", "-0.1", "nan", "inf", "", "high")
BAD_NUMBERS = ("nan", "-inf", "x", "1e39", "-1e39", "1_000", "1 ", "\u0663", "1e999")
BAD_LABELS = ("maybe", "-", "", "Yes", "yes ", "1")
BAD_ROWS = (("a\tyes\tmore", 3), ("a", 1), ("", 1), ("a\tyes\t", 3))
HEAD = "text\tlabel\n"
FAULTS: list[tuple[Columns, Labels, str, str]] = [
    *((SINGLE, SCORES, f"{HEAD}a\t1\nb\t{x}\n", f"line 3: .* 0 to 5, .*'{x}'$")
      for x in BAD_SCORES),
    *((SINGLE, Labels(), f"{HEAD}a\t{x}\n", "line 2: expected a score") for x in BAD_NUMBERS),
    *((SINGLE, YES_NO, f"{HEAD}a\tyes\nb\t{x}\n", f"line 3: .*'{x}' .*'no', 'yes'$")
      for x in BAD_LABELS),
    *((SINGLE, YES_NO, f"{HEAD}fine\tno\n{row}\nfine\tno\n", f"line 3: expected 2 .* found {n}")
      for row, n in BAD_ROWS),
    (SINGLE, YES_NO, f"{HEAD}{'long ' * 1000}\n", "line 2: expected 2 .{,200}$"),
    (SINGLE, YES_NO, "", "expected the columns"),
    (SINGLE, YES_NO, "\ufeff", "expected the columns"),
    (SINGLE, YES_NO, HEAD, "no rows"),
    (SINGLE, YES_NO, "texts\tlabel\na\tyes\n", "'text' .*'texts'"),
    (SINGLE, YES_NO, "text\ttext\tlabel\na\tb\tyes\n", "each once.*'text' occurs 2 times"),
    (BARE, YES_NO, f"{HEAD}x\tyes\t\ta\n", "line 1: .*4 .*2"),
    (BARE, YES_NO, "index\tfirst\tsecond\tlabel\nx\tyes\t\ta\n", "line 1: the label 'first'"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "labels", "content", "message"), FAULTS)
def test_a_fault_is_named_by_file_and_place(tmp_path, columns, labels, content, message):
    with pytest.raises(ValueError, match=rf"(?s)dev.tsv.*{message}"):
        read(written(tmp_path, content), columns, labels)


def test_broken_lines_of_an_official_file_are_left_out_and_counted(tmp_path):
    """A line break inside a question leaves two short lines; the published count has neither."""
    path = written(
        tmp_path,
        'id\tfirst\tsecond\tlabel\n0\ta\tb\tyes\n1\t"broken\nin two"\tc\tno\n2\td\te\tno\n',
    )
    records = read(path, PAIR, YES_NO, count_of_whole_lines=2)
    assert rows(records) == [("a", "b", 1), ("d", "e", 0)]
    for count in (None, 1, 3, 4):
        with pytest.raises(ValueError, match="line 3: .*4 .*2: .*'1.*broken"):
            read(path, PAIR, YES_NO, count_of_whole_lines=count)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_not_utf8(tmp_path, mark):
    start = mark + "text\tlabel\nschön\tyes\n".encode()
    path = written(tmp_path, start + "grün\tno\n".encode("latin-1"))
    with pytest.raises(ValueError, match=rf"dev.tsv, line 3: .*UTF-8 .*{len(start) + 2} "):
        read(path, SINGLE, YES_NO)


def test_a_missing_file_says_what_is_there(tmp_path):
    (tmp_path / "other.tsv").touch()
    (tmp_path / "more").mkdir()
    with pytest.raises(ValueError, match=r"dev.tsv: is missing; .*: more/, other.tsv$"):
        read(tmp_path / "dev.tsv", SINGLE, YES_NO)
    with pytest.raises(ValueError, match="folder .*nowhere"):
        read(tmp_path / "nowhere" / "dev.tsv", SINGLE, YES_NO)
    with pytest.raises(ValueError, match="more: "):
        read(tmp_path / "more", SINGLE, YES_NO)


def test_labels_of_an_unknown_set(tmp_path):
    path = written(tmp_path, "text\tlabel\na\tz\nb\tm\nc\tz\n")
    assert list(files.read_labels(path, SINGLE)) == ["z", "m", "z"]
    for label in ("", "p ", " p"):
        path = written(tmp_path, f"text\tlabel\na\tp\nb\t{label}\nc\tn\n")
        with pytest.raises(ValueError, match="dev.tsv, line 3: .*name of"):
            list(files.read_labels(path, SINGLE))
