"""Claims as data: which rows they pair, and what is refused."""

import dataclasses
import itertools

import pytest

from scalelab.config.pretraining import Shape
from scalelab.lab.compare import claim_lines
from scalelab.lab.load import study_runs
from scalelab.records import study_file

TASKS = ("sst2", "mnli", "blimp")
BASE = {"bert": {"objective": "mlm+nsp", "mask_rate": 0.15, "optim.learning_rate": 0.001},
        "gpt": {"objective": "clm", "mask_rate": 0.15, "optim.learning_rate": 0.001}}  # fmt: skip
VARIANTS = {
    "default": (), "wide": ("objective=mlm",), "mask_rate_0p4": ("mask_rate=0.4",),
    "learning_rate_0p003": ("optim.learning_rate=0.003",),
    "mask_rate_0p4_learning_rate_0p003": ("mask_rate=0.4", "optim.learning_rate=0.003"),
}  # fmt: skip


def rows(variants=VARIANTS, systems=("bert", "gpt"), shapes=("2x8x1", "2x16x1")) -> list:
    """The rows of systems x shapes x variants, named as a study's."""
    planned = []
    for system, shape, variant in itertools.product(systems, shapes, variants):
        lines = dict(line.split("=") for line in variants[variant])
        values = {k: claim_lines.parse_value(x) for k, x in lines.items()}
        key = (system, Shape.parse(shape), variant, 0)
        planned.append(study_file.StudyRun("", "main", *key, BASE[system] | values))
    return study_runs.make_rows(planned, variants)


BY_HAND = rows({key: VARIANTS[key] for key in ("default", "wide")})
GRID = rows({key: lines for key, lines in VARIANTS.items() if key != "wide"}, shapes=("2x8x1",))


def read(*line, of=BY_HAND) -> claim_lines.ClaimLine:
    return claim_lines.parse(line, of, TASKS)


def pairs(text: str, of) -> list:
    """The keys of the paired rows."""
    found = [[" ".join((r.system, str(r.shape), r.variant)) for (r,) in pair]
             for pair in read(text, "sst2", of=of).pairs]  # fmt: skip
    return [tuple(pair) for pair in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt > bert", [(f"gpt {x} {v}", f"bert {x} {v}")
                        for x in ("2x8x1", "2x16x1") for v in ("default", "wide")]),
        ("wide > default", [(f"{s} {x} wide", f"{s} {x} default")
                             for s in ("bert", "gpt") for x in ("2x8x1", "2x16x1")]),
        ("gpt wide > bert", [(f"gpt {x} wide", f"bert {x} default") for x in ("2x8x1", "2x16x1")]),
        ("bert 2x16x1 > 2x8x1", [(f"bert 2x16x1 {v}", f"bert 2x8x1 {v}")
                                 for v in ("default", "wide")]),
        ("gpt 2x1*x1 > bert", [(f"gpt 2x16x1 {v}", f"bert 2x16x1 {v}")
                               for v in ("default", "wide")]),
        ("gpt 2x16x1 wide > bert 2x8x1 wide", [("gpt 2x16x1 wide", "bert 2x8x1 wide")]),
        ("bert 2x8x1 objective=mlm > objective=mlm+nsp", [("bert 2x8x1 wide",
                                                           "bert 2x8x1 default")]),
    ],
)  # fmt: skip
def test_rows_pair_where_they_agree_in_what_is_not_named(text: str, expected: list) -> None:
    assert pairs(text, BY_HAND) == expected


RATES = ("", "learning_rate_0p003")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The mean over the other field of the grid.
        ("bert mask_rate=0.4 > mask_rate=0.15", [("mask_rate_0p4", "default"),
         ("mask_rate_0p4_learning_rate_0p003", "learning_rate_0p003")]),
        # Numbers are numbers; a dotted name is a name; a field of one side holds for both.
        ("bert mask_rate=4e-1 learning_rate=3e-3 > mask_rate = 0.150",
         [("mask_rate_0p4_learning_rate_0p003", "learning_rate_0p003")]),
        ("bert optim.learning_rate=0.003 mask_rate=0.15 > optim.learning_rate=1e-3",
         [("learning_rate_0p003", "default")]),
        ("bert mask_rate=0.4 > default", [("mask_rate_0p4", "default")]),
        ("bert mask_rate_0p4 > baseline", [("mask_rate_0p4", "default")]),  # names of old files
    ],
)  # fmt: skip
def test_fields_select_rows_by_their_resolved_values(text: str, expected: list) -> None:
    assert pairs(text, GRID) == [(f"bert 2x8x1 {a}", f"bert 2x8x1 {b}") for a, b in expected]


def test_a_claim_in_fields_holds_whatever_the_base_config_has() -> None:
    """At another scale the base rate is 0.003, and the grid's variant sets 0.001."""
    variants = {"default": (), "learning_rate_0p001": ("optim.learning_rate=0.001",)}
    base = {"objective": "mlm", "mask_rate": 0.15, "optim.learning_rate": 0.003}
    planned = [
        study_file.StudyRun("", "main", "bert", Shape(2, 8, 1), key, 0, base | values)
        for key, values in (("default", {}), ("learning_rate_0p001", {"optim.learning_rate": 1e-3}))
    ]
    swapped = study_runs.make_rows(planned, variants)
    text = "learning_rate=0.003 > learning_rate=0.001"
    assert pairs(text, swapped) == [("bert 2x8x1 default", "bert 2x8x1 learning_rate_0p001")]
    assert [row.label for row in swapped] == [
        "bert 2x8x1 learning_rate=0.003", "bert 2x8x1 learning_rate=0.001"
    ]  # fmt: skip


def test_systems_pair_at_equal_values_and_other_defaults() -> None:
    found = pairs("gpt mask_rate=0.4 > bert mask_rate=0.15", GRID)
    assert [(a.split()[-1], b.split()[-1]) for a, b in found] == [
        ("mask_rate_0p4", "default"), ("mask_rate_0p4_learning_rate_0p003", "learning_rate_0p003"),
    ]  # fmt: skip


def test_arms_are_shown_by_their_values() -> None:
    assert [row.label for row in GRID if row.system == "bert"] == [
        "bert 2x8x1 mask_rate=0.15 learning_rate=0.001",
        "bert 2x8x1 mask_rate=0.4 learning_rate=0.001",
        "bert 2x8x1 mask_rate=0.15 learning_rate=0.003",
        "bert 2x8x1 mask_rate=0.4 learning_rate=0.003",
    ]
    assert [row.label for row in BY_HAND][:2] == ["bert 2x8x1", "bert 2x8x1 wide"]
    assert [row.key for row in GRID][:2] == ["bert 2x8x1", "bert 2x8x1 mask_rate_0p4"]
    shown = read("mask_rate_0p4 > baseline", "sst2", of=GRID).text
    assert shown == ("mask_rate=0.4 learning_rate=0.001 > mask_rate=0.15 learning_rate=0.001")
    variants = {"default": (), "max_len_64_max_len_128": ("short.max_len=64", "long.max_len=128")}
    config = {"short": {"max_len": 32}, "long": {"max_len": 64}}
    planned = [study_file.StudyRun("", "main", "bert", Shape(2, 8, 1), "default", 0, config)]
    planned.append(dataclasses.replace(planned[0], variant="max_len_64_max_len_128"))
    first, _ = study_runs.make_rows(planned, variants)
    assert first.label == "bert 2x8x1 short.max_len=32 long.max_len=64"
    assert study_runs.show_value(1e-5) == "1e-5" and study_runs.show_value(3e6) == "3e6"
    assert study_runs.show_value(0.1 + 0.2) == "0.30000000000000004"


def test_best_gathers_the_values_among_which_validation_chooses() -> None:
    line = read("bert mask_rate=0.4 best(learning_rate) > mask_rate=0.15", "blimp", of=GRID)
    assert line.best == ("optim.learning_rate",)
    ((a, b),) = line.pairs
    rate = "learning_rate_0p003"
    assert [row.variant for row in a] == ["mask_rate_0p4", f"mask_rate_0p4_{rate}"]
    assert [row.variant for row in b] == ["default", rate]
    both = read("gpt > bert best(learning_rate)", "blimp", of=GRID)
    assert [(a[0].system, len(a), b[0].system, len(b)) for a, b in both.pairs] == [
        ("gpt", 2, "bert", 2)
    ] * 2  # at each mask rate


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
        (("gpt ~ bert", "sst2"), "margin"), (("gpt bert > wide", "sst2"), "names two systems"),
        (("gpt > bert", "sst2", "2"), "margin"), (("gpt > bert", "sst2", -1), "margin"),
        (("gpt bert", "sst2"), "'A > B'"), (("gpt >= bert", "sst2"), "'A > B'"),
        (("gpt > bert",), "'A > B'"), ((1, 2), "'A > B'"),
        (("objectve=mlm > default", "sst2"), r"'objective'.*objective: mlm\+nsp, mlm"),
        (("objective=mlmm > default", "sst2"), "study has objective: mlm.nsp, mlm, clm"),
        (("objective=mlm > objective=mlm", "sst2"), "same rows"),
        (("objective=mlm objective=clm > bert", "sst2"), "two values"),
        (("gpt best(learning_rate) > bert", "sst2"), "nothing to choose"),
        (("gpt best(rate) > bert", "sst2"), "no field 'rate'"),
        (("gpt best(objective) > bert", "sst2"), r"losses .* do not compare \(objective\)"),
    ],
)  # fmt: skip
def test_bad_claims_are_refused(line: tuple, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read(*line)
