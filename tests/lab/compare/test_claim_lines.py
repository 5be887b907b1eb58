"""Claims as data: which rows they pair, and what is refused."""

from typing import NamedTuple

import pytest

from scalelab.lab.compare import claim_lines

SYSTEMS, VARIANTS, TASKS = ("bert", "gpt"), ("baseline", "wide"), ("sst2", "mnli", "blimp")


class Row(NamedTuple):
    system: str
    shape: str
    variant: str


ROWS = [Row(s, x, v) for s in SYSTEMS for x in ("2x8x1", "2x16x1") for v in VARIANTS]


def read(*line) -> claim_lines.ClaimLine:
    return claim_lines.parse(line, SYSTEMS, VARIANTS, TASKS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt > bert", [(f"gpt {x} {v}", f"bert {x} {v}")
                        for x in ("2x8x1", "2x16x1") for v in VARIANTS]),
        ("wide > baseline", [(f"{s} {x} wide", f"{s} {x} baseline")
                             for s in SYSTEMS for x in ("2x8x1", "2x16x1")]),
        ("gpt wide > bert", [(f"gpt {x} wide", f"bert {x} baseline") for x in ("2x8x1", "2x16x1")]),
        ("bert 2x16x1 > 2x8x1", [(f"bert 2x16x1 {v}", f"bert 2x8x1 {v}") for v in VARIANTS]),
        ("gpt 2x1*x1 > bert", [(f"gpt 2x16x1 {v}", f"bert 2x16x1 {v}") for v in VARIANTS]),
        ("gpt 2x16x1 wide > bert 2x8x1 wide", [("gpt 2x16x1 wide", "bert 2x8x1 wide")]),
    ],
)  # fmt: skip
def test_rows_pair_where_they_agree_in_what_is_not_named(text: str, expected: list) -> None:
    pairs = read(text, "sst2").pair(ROWS)
    assert [(" ".join(a), " ".join(b)) for a, b in pairs] == expected


def test_regions_have_the_unit_of_tables() -> None:
    above, near, below = (
        read(f"gpt {sign} bert", score, 2).region
        for sign, score in ((">", "blimp"), ("~", "mnli"), ("<", "loss"))
    )
    assert (above.holds(0.021), above.holds(0.019)) == (True, False)
    assert (near.holds(-0.019), near.holds(0.021)) == (True, False)
    assert (below.holds(-2.1), below.holds(-1.9)) == (True, False)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (("gpt > brt", "sst2"), "'bert'"), (("gpt > bert", "sst"), "'sst2'"),
        (("gpt > bert", "large"), "blimp"), (("gpt > gpt", "sst2"), "same rows"),
        (("gpt ~ bert", "sst2"), "margin"), (("gpt bert > wide", "sst2"), "two of one kind"),
        (("gpt > bert", "sst2", "2"), "margin"), (("gpt > bert", "sst2", -1), "margin"),
        (("gpt bert", "sst2"), "'A > B'"), (("gpt > bert",), "'A > B'"), ((1, 2), "'A > B'"),
    ],
)  # fmt: skip
def test_bad_claims_are_refused(line: tuple, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read(*line)
