"""Studies at a size for tests."""

import pathlib
from typing import Any

import tiny

from scalelab.studies import spec

SMALL = {
    "pretrain.tokenizer.vocab_size": 300, "pretrain.model.max_len": 32,
    "pretrain.short.max_len": 32, "pretrain.short.batch_size": 8,
    "pretrain.long.example_rate": 0.0, "pretrain.optim.total_epochs": None,
    "pretrain.optim.total_steps": 6, "pretrain.optim.warmup_steps": 2,
    "pretrain.eval.every_steps": 3, "pretrain.eval.num_examples": 16,
    "pretrain.machine.loader": "numpy", "pretrain.machine.num_workers": 1,
    "pretrain.machine.log_every_steps": 1, "pretrain.machine.checkpoint_every_steps": 2,
    "pretrain.machine.compile_cache_dir": None,
}  # fmt: skip


def values(**changes: Any) -> dict[str, Any]:
    """The fields of a study of two systems; `changes` like pretrain__seed=1 replace some."""
    made = tiny.config_module("study").get_config().to_dict()
    made |= {"name": "two", "title": "Two systems", "question": "Which?", "seeds": 1}
    made["stages"], made["system_fields"] = {"main": stage()}, {}
    made |= {"comparison": "scalelab.thesis.comparison", "tables": ("data", "large")}
    made["finetune"] |= {"tasks": (), "seeds": 1, "recipe": "small", "scratch": False}
    for name, value in SMALL.items():
        _set(made, name, value)
    for name, value in changes.items():
        _set(made, name.replace("__", "."), value)
    if "stage_order" not in changes:
        made["stage_order"] = tuple(made["stages"])
    return made


def stage(**changes: Any) -> dict[str, Any]:
    """A stage: two systems, one shape."""
    return {
        "systems": ("bert", "gpt2"),
        "shapes": ("2x8x1",),
        "variants": ("default",),
        "finetune": "all",
    } | changes


def make(**changes: Any) -> spec.StudySpec:
    """A resolved study."""
    return spec.resolve(values(**changes))


def _set(made: dict[str, Any], field: str, value: Any) -> None:
    *groups, name = field.split(".")
    for group in groups:
        made = made[group]
    assert name in made, field
    made[name] = value


def config_file(path: pathlib.Path, **changes: Any) -> pathlib.Path:
    """A study's config file, as a user would write one."""
    path.write_text(
        "import ml_collections\n\n\n"
        "def get_config(arguments=''):\n"
        f"    return ml_collections.ConfigDict({values(**changes)!r})\n"
    )
    return path
