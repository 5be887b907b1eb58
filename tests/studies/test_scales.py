"""What configs/study.py says of scales, held to what they are."""

import dataclasses
import functools

import pytest
import tiny

from scalelab import systems
from scalelab.config import pretraining as config_lib
from scalelab.config.fields import flatten
from scalelab.studies import expand, finetunings, plan, spec

SCALES = ("full", "medium", "small", "tiny")
PARTS = ("study", "pre-training", "fine-tuning")
# Fields of a study that are its own, or that the other two parts hold.
NOT_OF_SCALES = tuple(
    "scale pretrain. fields system_fields. finetune.fields finetune.tasks stages. stage_order"
    " variants. rows. hypotheses model.num_heads model.width model.num_layers recipe".split()
)


@functools.cache
def resolved(scale: str) -> dict[str, dict[str, object]]:
    """Dotted fields of each part: of a study, the base config's pre-training in it, a
    fine-tuning."""
    arguments = f"scale={scale},corpus=wikitext:/w"
    config = tiny.config_module("studies/thesis_7_5_1").get_config(arguments)
    made = spec.resolve(config.to_dict())
    run = next(run for run in expand.expand_runs(made) if run.system == "roberta")
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
    parts = [resolved(scale)[part] for scale in SCALES]
    fields = {field for values in parts for field in values}
    differing = {f for f in fields if len({str(values.get(f)) for values in parts}) > 1}
    found = {f: tuple(cell(values.get(f)) for values in parts) for f in differing}
    assert rows(part) == found


def test_at_full_scale_the_builtin_corpus_has_fewer_pieces() -> None:
    study = tiny.config_module("study").get_config("")
    assert config_lib.resolve(study.pretrain.to_dict()).tokenizer.vocab_size == 20_000


def test_a_grid_makes_variants_named_by_what_they_change() -> None:
    study = tiny.config_module("study")
    config = study.get_config("scale=tiny")  # learning rate 4e-3
    names = study.grid(config, mask_rate=(0.15, 0.4), learning_rate=(4e-3, 1e-3))
    assert names == (
        "default", "learning_rate_0p001", "mask_rate_0p4", "mask_rate_0p4_learning_rate_0p001",
    )  # fmt: skip
    config.stages.main = dict(
        systems=("bert",), shapes=("2x16x1",), variants=names, finetune="none"
    )
    config.hypotheses = (("mask_rate=0.4 > mask_rate=0.15", "bits_per_byte"),)
    config.hypotheses = (*config.hypotheses, ("learning_rate_0p001 < baseline", "loss"))
    runs = expand.expand_runs(made := spec.resolve(config.to_dict()))
    line, *power = plan.describe_claims(made, runs)
    assert [own.partition(":")[0] for own in power] == ["power, validation loss", "Power"]
    assert "mask_rate=0.4 > mask_rate=0.15" in line and "(mask_rate)" in line
    found = {r.variant: (r.config.mask_rate, r.config.optim.learning_rate) for r in runs}
    assert found == dict(
        zip(names, [(0.15, 4e-3), (0.15, 1e-3), (0.4, 4e-3), (0.4, 1e-3)], strict=True)
    )
    for bad, named in (("max_len", "long.max_len"), ("learning_rat", "optim.learning_rate")):
        with pytest.raises(ValueError, match=named):
            study.grid(config, **{bad: (1,)})
    with pytest.raises(ValueError, match="mask_rate=0.4: expected a list"):
        study.grid(config, mask_rate=0.4)
    assert study.grid(config, objective=("mlm", "mlm+nsp"))[1] == "objective_mlm_nsp"


def test_a_grid_of_options() -> None:
    study, name = tiny.config_module("study"), "objective_options.span_p"
    config = study.get_config("scale=tiny")
    names = study.grid(config, mask_rate=(0.15, 0.3), **{name: (0.2, 0.5)})
    config.stages.main = dict(
        systems=("spanbert",), shapes=("2x16x1",), variants=names, finetune="none"
    )
    runs = expand.expand_runs(spec.resolve(config.to_dict()))
    found = {r.variant: (r.config.mask_rate, r.config.objective_options["span_p"]) for r in runs}
    assert found["mask_rate_0p3_span_p_0p5"] == (0.3, 0.5) and len(found) == 4
    study.grid(config, **{"objective_options.span_q": (1,)})
    config.stages.main.variants = ("span_q_1",)
    with pytest.raises(ValueError, match="span_q.*'span_p'"):
        expand.expand_runs(spec.resolve(config.to_dict()))
