"""Thesis 7.5.5: a grid of shapes of one size, then compound scaling (Tables 7.6 to 7.8, B.5).

The grid has nine shapes near N = 0.39M (five at scale small; four near 0.02M at scale tiny). They
train on the first phase alone. The shapes of lowest loss are fine-tuned: the protocol's three at
scale full, the four of results/thesis_small at scale small; other scales fine-tune all. Hypothesis
5 needs four. The best score among the three shapes of lowest loss sets alpha and beta; the notes
below the report's grid show them.

Scale full then trains the protocol's three scaled shapes for fewer epochs, and the best model
before them. The other scales train one shape of twice the size: one step of phi up from 2x90x4, the
best of results/thesis_small (2x22x4 at scale tiny). If the report names another shape, set it with
--config.stages.scaled.shapes="('2x148x3',)".

Three shapes with one seed each decide nothing: scale full tests hypothesis 4a with seeds=2.
"""

import ml_collections

from scalelab.config import files

GRID = (
    "2x128x2",
    "2x104x3",
    "2x90x4",
    "2x74x6",
    "2x64x8",
    "2x58x10",
    "2x52x12",
    "2x48x14",
    "2x46x16",
)
SHAPES = {
    "full": GRID,
    "medium": GRID,
    "small": GRID[:5],
    "tiny": ("2x32x2", "2x26x3", "2x22x4", "2x16x8"),
}
UNTUNED = {"full": GRID[3:], "small": ("2x64x8",)}
# The stages after the grid: shapes and training fields (protocol, Tables 7.7, 7.8, B.5).
THEN = {
    "full": {
        "before": (("2x256x9",), "default"),
        "scaled": (("7x469x4",), "fewer_epochs"),
        "larger": (("9x585x5", "13x832x5"), "fewer_long_epochs"),
    },
    "medium": {"scaled": (("2x128x4",), "default")},
    "small": {"scaled": (("2x128x4",), "default")},
    "tiny": {"scaled": (("2x28x5",), "default")},
}
# The tables and the stages that stand in them; at scale full those of the protocol.
GRID_ROWS = ("Shapes of one size, short sequences alone", ("grid", "untuned"))
ROWS = {
    "grid:grid": GRID_ROWS,
    "cost:scaled": ("The grid and the shape scaled up from it", ("grid", "untuned", "scaled")),
    "large:larger": ("Scaled up", ("scaled",)),
}
FULL_ROWS = {
    "grid:grid": GRID_ROWS,
    "cost:scaled": ("The scaled-up shape against the best before it", ("before", "scaled")),
    "large:larger": ("Scaled up further", ("larger",)),
    "small:up": ("Scaled up", ("scaled", "larger")),
}


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study at the scale asked for."""
    study = files.load(files.FOLDER / "study.py")
    config = study.get_config(arguments)
    config.name = "thesis_7_5_5"
    config.title = "Systematic scaling"
    config.question = "Which shape is best at one size, and does scaling it up keep it so?"
    config.protocol = "7.5.5"
    config.comparison = "scalelab.thesis.comparison"
    config.variants.short_only = ("long.epoch_rate=0.0",)
    untuned = UNTUNED.get(config.scale, ())
    tuned = tuple(x for x in study.of_scale(SHAPES, config.scale) if x not in untuned)
    stages = {"grid": (tuned, "short_only")} | (
        {"untuned": (untuned, "short_only")} if untuned else {}
    )
    stages |= THEN[config.scale]
    for name, (shapes, variant) in stages.items():
        config.stages[name] = dict(
            systems=("bert",), shapes=shapes, variants=(variant,),
            finetune="none" if name == "untuned" else "all",
        )  # fmt: skip
    config.stage_order = tuple(stages)
    if config.scale == "full":
        config.variants.fewer_epochs = ("optim.total_epochs=5.0",)
        config.variants.fewer_long_epochs = ("optim.total_epochs=5.0", "long.epoch_rate=0.6")
        config.finetune.tasks = study.GLUE
    tables = FULL_ROWS if config.scale == "full" else ROWS
    for table, (title, stages) in tables.items():
        own = tuple(stage for stage in stages if stage in config.stages)
        config.rows[table.partition(":")[2]] = study.rows(title, stages=own)
    config.tables = tuple(tables)
    config.figures = ("loss_by_time", "loss_by_tokens", "score_by_size")
    several = ("4a",) if config.scale == "full" else ("4a", "5")
    config.hypotheses = several if config.seeds > 1 else ()
    return config
