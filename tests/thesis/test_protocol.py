"""Scale full of the thesis' studies is the benchmark protocol: its facts, typed in here.

Numbers are the protocol's, by section of the thesis; what it leaves open and scalelab decides
(decoupled decay, clipping, one schedule over both phases) is marked so in the protocol, and here.
"""

import pytest
import tiny

from scalelab.config import finetuning as finetune_config
from scalelab.config import pretraining as config_lib
from scalelab.lab.load import study_runs
from scalelab.lab.show import score_tables
from scalelab.studies import expand, spec
from scalelab.tasks import recipes
from scalelab.thesis import comparison, published

OF_ALL = {
    "init": None, "frozen": None,  # 7.1 to 7.3; sizes of batches: 7.3
    "mask_rate": 0.15, "mask_copies": None, "seed": 0, "net.ffn_width": None, "net.max_len": 512,
    "net.dropout_rate": 0.1, "net.dtype": "float32", "net.output_embedding": None,
    "tokenizer.vocab_size": 30_000, "tokenizer.lowercase": False,
    "data.corpus": "wikitext:/w", "data.errors": "strict", "data.keep_headings": False,
    "data.valid_rate": 0.005, "data.order_seed": None,
    "short.max_len": 128, "short.batch_size": 64,
    "long.max_len": 512, "long.batch_size": 16, "long.epoch_rate": None,
    "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.eps": 1e-6, "optim.weight_decay": 0.01,
    "optim.clip_norm": 1.0,  # ours
    "optim.schedule": "linear", "optim.warmup_steps": 1000,
    "eval.every_steps": 1000, "eval.num_examples": 2000,  # ours
    "eval.pairs": None, "eval.pairs_every_words": None, "eval.pairs_per_group": None,
} | {f"optim.total_{clock}": None for clock in ("steps", "tokens", "flops", "secs")} | {
    f"optim.warmup_{clock}": None for clock in ("tokens", "flops", "secs")
}  # fmt: skip
OF_SYSTEM = {  # 5, 6.2.1, 7.2, 7.3; long examples of all examples: Table 7.1
    "bert": ("mlm+nsp", "wordpiece", "segment_pair", 1e-4, 6.0, 0.10262),
    "roberta": ("mlm", "bytebpe", "doc_sentences", 1e-4, 10.0, 0.08713),
    "gpt2": ("clm", "bytebpe", "doc_sentences", 2.5e-4, 10.0, 0.08713),
}
FIELDS = (
    "objective", "tokenizer.kind", "data.format", "optim.learning_rate", "optim.total_epochs",
    "long.example_rate",
)  # fmt: skip
OPTIONS = {"bert": {"format_options.short_rate": 0.1}, "roberta": {}, "gpt2": {}}
STYLES = ("bert", "roberta", "gpt2")
WIDE = ("2x128x2", "2x192x2", "2x288x2", "2x384x2", "2x544x2")
DEEP = ("2x128x5", "2x128x10", "2x128x18", "2x128x36")
GRID = ("2x128x2", "2x104x3", "2x90x4", "2x74x6", "2x64x8", "2x58x10", "2x52x12", "2x48x14",
        "2x46x16")  # fmt: skip
HALF = {"bert": 3.0, "roberta": 5.0}  # epochs
# Study -> its runs, and what they have other than their system's: systems, shapes, variant, fields.
RUNS = {
    "thesis_7_5_1": [(STYLES, WIDE + DEEP, "baseline", {})],
    "thesis_7_5_2": [
        (STYLES, ("2x204x7", "2x256x9", "8x544x2"), "baseline", {}),
        (STYLES, ("2x384x2", "2x128x18", "2x544x2", "2x128x36"), "baseline", {}),
    ],
    # Figure 7.3 left: one dimension; right and B.1: two of equal size, and the largest.
    "thesis_7_5_3": [
        (("bert",), ("2x128x2", "2x384x2", "2x544x2", "2x128x10", "2x128x18", "2x128x36",
                     "2x204x7", "2x256x9"), "baseline", {}),
    ],
    "thesis_7_5_4": [
        (("bert", "roberta"), ("2x256x9",), "baseline", {}),
        *[((name,), ("2x256x9",), "half_steps", {"optim.total_epochs": half})
          for name, half in HALF.items()],
        *[((name,), ("2x256x9",), "half_batch",
           {"optim.total_epochs": half, "short.batch_size": 32, "long.batch_size": 8})
          for name, half in HALF.items()],
    ],
    "thesis_7_5_5": [
        (("bert",), GRID, "short_only", {"long.epoch_rate": 0.0}),
        (("bert",), ("2x256x9",), "baseline", {}),
        (("bert",), ("7x469x4",), "fewer_epochs", {"optim.total_epochs": 5.0}),
        (("bert",), ("9x585x5", "13x832x5"), "fewer_long_epochs",
         {"optim.total_epochs": 5.0, "long.epoch_rate": 3 / 5}),
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
    "thesis_7_5_2": ("2x384x2", "2x128x18", "2x544x2", "2x128x36"),  # of 7.2, 7.3, for Figure 7.2
    "thesis_7_5_3": RUNS["thesis_7_5_3"][0][1],  # figures alone
}
TASKS = {"mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte", "wnli"}
UNTUNED = ("2x74x6", "2x64x8", "2x58x10", "2x52x12", "2x48x14", "2x46x16")  # "-" in Table 7.6


def load(name: str, scale: str = "full") -> spec.StudySpec:
    module = tiny.config_module(f"studies/{name}")
    return spec.resolve(module.get_config(f"scale={scale},corpus=wikitext:/w").to_dict())


@pytest.mark.parametrize("name", RUNS)
def test_every_run_is_the_protocols(name: str, tmp_path) -> None:
    """Every science field of every run, and no run more or less."""
    expected = {}
    for systems, shapes, variant, changed in RUNS[name]:
        for system in systems:
            fields = OF_ALL | dict(zip(FIELDS, OF_SYSTEM[system], strict=True))
            fields |= OPTIONS[system] | changed
            for shape in shapes:
                a, h, n = map(int, shape.split("x"))
                net = {"net.num_heads": a, "net.width": h, "net.num_layers": n}
                expected[system, shape, variant] = fields | net | {"system": system}
    planned = expand.expand_runs(load(name))
    found = {(r.system, str(r.shape), r.variant): config_lib.science(r.config) for r in planned}
    assert len(planned) == len(found)  # one pre-training of each
    assert found == expected


@pytest.mark.parametrize("name", RUNS)
def test_every_published_row_is_a_run(name: str, tmp_path) -> None:
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
def test_fine_tuning_is_the_protocols(name: str, tmp_path) -> None:
    made = load(name)
    assert made.seeds == made.finetune.seeds == 1
    assert made.variants["baseline"] == ()
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
    assert (recipe.dropout_rate, recipe.max_train_examples, recipe.head.kind) == (
        0.1,
        None,
        "double",
    )
    assert not recipes.get("thesis").tasks


@pytest.mark.parametrize("scale", ["medium", "small", "tiny"])
@pytest.mark.parametrize("name", RUNS)
def test_other_scales_share_their_runs(name: str, scale: str, tmp_path) -> None:
    """A run that two studies of one scale and clock name is one run, trained once."""
    mine, theirs = (
        {run.name: run.config for run in expand.expand_runs(load(study, scale))}
        for study in (name, "thesis_7_5_1")
    )
    shared = mine.keys() & theirs.keys()
    assert {run: mine[run] for run in shared} == {run: theirs[run] for run in shared}
    assert shared if name in ("thesis_7_5_1", "thesis_7_5_2", "thesis_7_5_4") else not shared
