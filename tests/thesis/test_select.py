"""Which rows belong together, on the thesis' rows, where it is known."""

from scalelab.config.pretraining import Shape
from scalelab.lab.load.study_runs import BASELINE
from scalelab.thesis import published, select
from scalelab.thesis.published import Row


def shapes(rows) -> list[str]:
    return [str(row.shape) for row in rows]


def rows(*texts: str, system: str = "bert") -> list[Row]:
    return [Row(system, Shape(*map(int, text.split("x"))), BASELINE) for text in texts]


BERT = select.baselines(published.read_scores())["bert"]


def test_ladders() -> None:
    wide = ["2x128x2", "2x192x2", "2x288x2", "2x384x2", "2x544x2"]
    deep = ["2x128x2", "2x128x5", "2x128x10", "2x128x18", "2x128x36"]
    assert shapes(select.ladder(BERT, "width")) == wide
    assert shapes(select.ladder(BERT, "num_layers")) == deep
    assert select.ladder(rows("2x32x2", "4x64x2", "2x128x4"), "width") == []
    assert select.ladder([], "width") == []


def test_balanced_rows_of_equal_size() -> None:
    """Table 7.4 beside 7.2 and 7.3, as figure 7.2 pairs them; 8x544x2 has other heads."""

    def found(dimension):
        return [tuple(shapes(pair)) for pair in select.balanced(BERT, dimension)]

    assert found("width") == [("2x384x2", "2x204x7"), ("2x544x2", "2x256x9")]
    assert found("num_layers") == [("2x128x18", "2x204x7"), ("2x128x36", "2x256x9")]


def test_equal_sizes_whose_heads_follow() -> None:
    assert [shapes(of) for of in select.equal_sizes(BERT)] == [
        ["2x128x18", "2x204x7"], ["2x128x36", "2x256x9", "8x544x2"],
    ]  # fmt: skip


def test_shapes_of_equal_size_differ_in_their_depth() -> None:
    """Heads alone make no other shape: of those the one with the most is taken."""
    heads = rows("4x256x2", "2x256x2")
    assert select.equal_sizes(heads) == []
    (found,) = select.equal_sizes([*heads, *rows("2x128x8")])
    assert shapes(found) == ["2x128x8", "4x256x2"]


def test_more_heads() -> None:
    assert [tuple(shapes(p)) for p in select.more_heads(BERT)] == [("2x544x2", "8x544x2")]
    assert select.more_heads(rows("2x128x2", "4x128x2")) == []  # 64 is not too wide
    assert select.more_heads(rows("1x512x2", "2x512x2")) == []  # 256 still is


def test_shapes_and_variants_that_are_shared() -> None:
    evidence = published.read_scores()
    found = select.by_shape(evidence, ("bert", "gpt2"))
    assert len(found) == 12  # distinct shapes that all styles have
    assert all(of["bert"].shape == of["gpt2"].shape for of in found)


def test_sizes() -> None:
    a, b, c = rows("2x32x2", "2x32x3", "2x64x4")
    assert select.near(a, a) and not select.near(b, a) and not select.near(b, c)
