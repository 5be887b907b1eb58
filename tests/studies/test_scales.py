"""What configs/study.py says of scales, held to what they are."""

import dataclasses
import functools

import pytest
import tiny

from scalelab import systems
from scalelab.config import pretraining as config_lib
from scalelab.config.fields import flatten
from scalelab.studies import expand, finetunings, spec

SCALES = ("full", "medium", "small", "tiny")
PARTS = ("study", "pre-training", "fine-tuning")
# Fields of a study that are its own, or that the other two parts hold.
NOT_OF_SCALES = (
    "scale",
    "pretrain.",
    "fields",
    "system_fields.",
    "finetune.fields",
    "stages.",
    "variants.",
    "rows.",
)
NOT_OF_SCALES += ("finetune.tasks", "hypotheses", "net.num_heads", "net.width", "net.num_layers")
NOT_OF_SCALES += (
    "variants.",
    "rows.",
    "stage_order",
    "recipe",
)  # the latter is finetune.recipe of the study


@functools.cache
def resolved(scale: str) -> dict[str, dict[str, object]]:
    """Dotted fields of each part: of a study, the control's pre-training in it, a fine-tuning."""
    arguments = f"scale={scale},corpus=wikitext:/w"
    config = tiny.config_module("studies/thesis_7_5_1").get_config(arguments)
    made = spec.resolve(config.to_dict())
    run = next(run for run in expand.expand_runs(made, tiny.ROOT) if run.system == "roberta")
    assert not any(d.field in rows("pre-training") for d in systems.load("roberta").DEPARTURES)
    parts = {
        "study": flatten(config.to_dict()),
        "pre-training": flatten(dataclasses.asdict(run.config)),
        "fine-tuning": flatten(finetunings.config_values(made.finetune, "mnli")),
    }
    return {
        part: {k: v for k, v in values.items() if not k.startswith(NOT_OF_SCALES)}
        for part, values in parts.items()
    }


def rows(part: str) -> dict[str, tuple[str, ...]]:
    """A table of the docstring: field -> cells, one a scale."""
    text = tiny.config_module("study").__doc__ or ""
    (table,) = (x for x in text.split("\n\n") if x.strip().startswith(f"{part} "))
    head, *lines = (line.split() for line in table.splitlines())
    assert tuple(head[1:]) == SCALES
    return {name: tuple(cells) for name, *cells in lines}


def cell(value: object) -> str:
    """A value as the docstring writes it."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    assert isinstance(value, int | float)
    return f"{value:,.10f}".rstrip("0").rstrip(".")


@pytest.mark.parametrize("part", PARTS)
def test_the_docstring_has_every_field_that_a_scale_sets(part: str) -> None:
    of = [resolved(scale)[part] for scale in SCALES]
    fields = {field for values in of for field in values}
    differing = {f for f in fields if len({str(values.get(f)) for values in of}) > 1}
    found = {f: tuple(cell(values.get(f)) for values in of) for f in differing}
    assert rows(part) == found


def test_every_field_of_a_scale_enters() -> None:
    """A field of Scale that nothing reads would be a promise of the table's that nobody keeps."""
    study = tiny.config_module("study")
    before = study.SMALLER["tiny"]
    for field in dataclasses.fields(before):
        value = getattr(before, field.name)
        other = tuple(x * 2 for x in value) if isinstance(value, tuple) else value * 2
        if field.name == "learning_rate":
            other = "8e-3"
        if field.name == "finetune":
            other = ("epochs=7",)
        config = study.get_config("scale=tiny").to_dict()
        study.SMALLER["tiny"] = dataclasses.replace(before, **{field.name: other})
        assert study.get_config("scale=tiny").to_dict() != config, field.name
        study.SMALLER["tiny"] = before


@pytest.mark.parametrize("scale", SCALES)
def test_the_corpus_is_the_one_asked_for_at_every_scale(scale: str) -> None:
    study = tiny.config_module("study")
    asked = study.get_config(f"scale={scale},corpus=wikitext:/w").pretrain.data.corpus
    assert (asked, study.get_config(f"scale={scale}").pretrain.data.corpus) == (
        "wikitext:/w", "builtin",
    )  # fmt: skip


def test_below_the_protocols_scale_one_learning_rate_is_for_all_systems() -> None:
    made = spec.resolve(
        tiny.config_module("studies/thesis_7_5_1").get_config("scale=small").to_dict()
    )
    rates = {run.config.optim.learning_rate for run in expand.expand_runs(made, tiny.ROOT)}
    assert rates == {1e-3}
    assert "optim.learning_rate" in {d.field for d in systems.load("gpt2").DEPARTURES}


def test_at_full_scale_the_builtin_corpus_has_fewer_pieces() -> None:
    study = tiny.config_module("study").get_config("")
    assert config_lib.resolve(study.pretrain.to_dict()).tokenizer.vocab_size == 20_000


@pytest.mark.parametrize(("scale", "num"), [("full", 3), ("medium", 4), ("small", 4), ("tiny", 4)])
def test_so_many_shapes_of_a_grid_are_fine_tuned(scale: str, num: int) -> None:
    """As the docstring of thesis_7_5_5 says."""
    config = tiny.config_module("studies/thesis_7_5_5").get_config(f"scale={scale}")
    assert config.stages.grid.finetune == f"best:{num}"
