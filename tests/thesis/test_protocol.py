"""Scale full of the thesis' studies is the benchmark protocol: its runs, tables and fine-tunings.

Fields are those of scalelab/thesis/protocol.py.
"""

import itertools

import pytest
import tiny

from scalelab.config import finetuning as finetune_config
from scalelab.config import pretraining as config_lib
from scalelab.lab.load import study_runs
from scalelab.lab.show import score_tables
from scalelab.studies import expand, spec
from scalelab.tasks import recipes
from scalelab.thesis import comparison, protocol, published

STYLES = ("bert", "roberta", "gpt2")
WIDE = ("2x128x2", "2x192x2", "2x288x2", "2x384x2", "2x544x2")
DEEP = ("2x128x5", "2x128x10", "2x128x18", "2x128x36")
GRID = ("2x128x2", "2x104x3", "2x90x4", "2x74x6", "2x64x8", "2x58x10", "2x52x12", "2x48x14",
        "2x46x16")  # fmt: skip
# Study -> its runs: systems, shapes, variants.
RUNS = {
    "thesis_7_5_1": [(STYLES, WIDE + DEEP, ("default",))],
    "thesis_7_5_2": [
        (STYLES, ("2x204x7", "2x256x9", "8x544x2", "2x384x2", "2x128x18", "2x544x2", "2x128x36"),
         ("default",)),
    ],
    # Figure 7.3 left: one dimension; right and B.1: two of equal size, and the largest.
    "thesis_7_5_3": [
        (("bert",), ("2x128x2", "2x384x2", "2x544x2", "2x128x10", "2x128x18", "2x128x36",
                     "2x204x7", "2x256x9"), ("default",)),
    ],
    "thesis_7_5_4": [(STYLES[:2], ("2x256x9",), ("default", "half_steps", "half_batch"))],
    "thesis_7_5_5": [
        (("bert",), GRID, ("short_only",)),
        (("bert",), ("2x256x9",), ("default",)),
        (("bert",), ("7x469x4",), ("fewer_epochs",)),
        (("bert",), ("9x585x5", "13x832x5"), ("fewer_long_epochs",)),
    ],
}  # fmt: skip
# Study -> its tables, and the protocol's that they are.
TABLES = {
    "thesis_7_5_1": {"large:width": "7.2", "large:depth": "7.3", "small:width": "B.1",
                     "small:depth": "B.2"},
    "thesis_7_5_2": {"large:several": "7.4", "small:several": "B.3"},
    "thesis_7_5_3": {},
    "thesis_7_5_4": {"strategies": "7.5", "strategies_small": "B.4"},
    "thesis_7_5_5": {"grid:grid": "7.6", "cost:scaled": "7.7", "large:larger": "7.8",
                     "small:up": "B.5"},
}  # fmt: skip
BESIDE = {  # runs that are in none of the study's tables, and why
    "thesis_7_5_2": (
        "2x384x2",
        "2x128x18",
        "2x544x2",
        "2x128x36",
    ),  # Tables 7.2, 7.3, for Figure 7.2
    "thesis_7_5_3": RUNS["thesis_7_5_3"][0][1],  # figures alone
}
TASKS = {"mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "wnli"}
UNTUNED = ("2x74x6", "2x64x8", "2x58x10", "2x52x12", "2x48x14", "2x46x16")  # "-" in Table 7.6


def load(name: str, scale: str = "full") -> spec.StudySpec:
    module = tiny.config_module(f"studies/{name}")
    return spec.resolve(module.get_config(f"scale={scale},corpus=wikitext:/w").to_dict())


@pytest.mark.parametrize("name", RUNS)
def test_every_run_is_the_protocols(name: str) -> None:
    """Every science field of every run, and no run more or less."""
    planned = expand.expand_runs(load(name))
    assert sorted((r.system, str(r.shape), r.variant) for r in planned) == sorted(
        run for factors in RUNS[name] for run in itertools.product(*factors)
    )
    for run in planned:
        fields = config_lib.science(run.config)
        shape = tuple(fields.pop(f"model.{x}") for x in ("num_heads", "width", "num_layers"))
        own = [fields.pop(field) for field in ("system", "seed", "data.corpus")]
        assert (shape, own) == (run.shape, [run.system, 0, "wikitext:/w"])
        expected = protocol.expected(run.system, run.variant)
        assert {k: v for k, v in fields.items() if v is not None} == {
            k: v for k, v in expected.items() if v is not None
        }


@pytest.mark.parametrize("name", RUNS)
def test_every_published_row_is_a_run(name: str) -> None:
    """So that printed numbers stand beside ours, which go by system, shape and variant."""
    runs = {
        (r.system, r.shape, r.variant)
        for r in expand.expand_runs(load(name))
        if str(r.shape) not in BESIDE.get(name, ())
    }
    rows = [row for table in TABLES[name].values() for row in published.read_table(table)]
    assert runs == {(row.system, row.shape, row.variant) for row in rows}


KINDS = [*score_tables.TABLES, *comparison.TABLES]


def tables_of(made: spec.StudySpec, path) -> dict[str, list[str]]:
    """The rows of each table of scores that a study asks for, once everything is planned."""
    expand.write(made, expand.expand_runs(made), path, "")
    study = study_runs.read(path)
    found = {}
    for table in study.facts.tables:
        kind, points, _ = score_tables.select(study, table, KINDS)
        if kind.startswith("strategies"):
            points = score_tables.order_by_net(points)
        found[table] = [point.label for point in points]
    return {table: labels for table, labels in found.items() if table.partition(":")[0] != "data"}


@pytest.mark.parametrize("name", RUNS)
def test_tables_are_the_protocols_row_by_row(name: str, tmp_path) -> None:
    found = tables_of(load(name), tmp_path)
    for table, printed in TABLES[name].items():
        assert found[table] == [row.label for row in published.read_table(printed)], table
    beside = BESIDE.get(name, ())
    for table in found.keys() - TABLES[name].keys():  # in tables of their own
        assert {label.split()[1] for label in found[table]} == set(beside), table


@pytest.mark.parametrize("name", RUNS)
def test_fine_tuning_is_the_protocols(name: str) -> None:
    made = load(name)
    assert made.seeds == made.finetune.seeds == 1
    assert made.variants["default"] == ()
    assert (made.finetune.recipe, made.finetune.fields) == ("thesis", ())
    assert set(made.finetune.tasks) == (set() if name == "thesis_7_5_3" else TASKS)
    rules = {name: stage.finetune for name, stage in made.stages.items()}
    if name == "thesis_7_5_3":
        assert set(rules.values()) == {"none"}
    else:
        assert rules == {stage: "none" if stage == "untuned" else "all" for stage in rules}
    printed = published.read_table("7.6")
    assert {str(r.shape) for r, cells in printed.items() if "large" not in cells} == set(UNTUNED)
    values = tiny.config_module("finetune").get_config("recipe=thesis").to_dict()
    recipe = finetune_config.resolve(values)
    assert (recipe.epochs, recipe.batch_size, recipe.optim.learning_rate) == (3, 16, 2e-5)  # 7.4
    found = (recipe.dropout_rate, recipe.max_train_examples, recipe.head.kind)
    assert found == (0.1, None, "double")
    assert not recipes.get("thesis").tasks


@pytest.mark.parametrize("scale", ["medium", "small", "tiny"])
@pytest.mark.parametrize("name", RUNS)
def test_other_scales_share_their_runs(name: str, scale: str) -> None:
    """A run that two studies of one scale and clock name is one run, trained once."""
    mine, theirs = (
        {run.name: run.config for run in expand.expand_runs(load(study, scale))}
        for study in (name, "thesis_7_5_1")
    )
    shared = mine.keys() & theirs.keys()
    assert {run: mine[run] for run in shared} == {run: theirs[run] for run in shared}
    assert shared if name in ("thesis_7_5_1", "thesis_7_5_2", "thesis_7_5_4") else not shared
