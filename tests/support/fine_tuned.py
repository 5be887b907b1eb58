"""Run folders as a fine-tuning leaves them, with random parameters; fine-tunings made ready."""

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tiny
from flax import linen as nn

from scalelab import objectives as objectives_lib
from scalelab import systems
from scalelab.config.finetuning import override, resolve
from scalelab.config.pretraining import Shape
from scalelab.finetuning import warm_start
from scalelab.finetuning.run import TaskRun
from scalelab.interop import exporting, importing, maps
from scalelab.nets.classifier import Classifier
from scalelab.nn.heads import ClassHead
from scalelab.objectives import Pass
from scalelab.records import run_files
from scalelab.tasks.task import load, load_task
from scalelab.training import pretrained
from scalelab.training.checkpoint import Checkpoints, Weights

WITH_SOURCE = {  # system -> kind of head
    family.system: family.head_kind() for family in maps.load_all() if "classify" in family.heads
}
KINDS = {name: kind for name, kind in WITH_SOURCE.items() if not systems.load(name).HAS_SOURCE}


def make(
    run: pathlib.Path, folder: pathlib.Path, kind: str, count: int = 3, **changed: Any
) -> tuple[Any, Any]:
    """Writes it; returns the classifier and its parameters."""
    opened = pretrained.load(run)
    system, sizes = opened.system, opened.config.model
    num_rows = opened.tokenizer.vocab_size + len(system.ADAPTATION.added_tokens)
    body = systems.make_net(system, sizes, opened.config.system_options, vocab_size=num_rows)
    init = nn.initializers.normal(0.5)
    width = sizes.width if kind == "double" else None
    head: Any = ClassHead(count, width, 0.1, init, system.ADAPTATION.activation)
    adaptation = system.ADAPTATION
    net = Classifier(body, head, adaptation.reads, source=adaptation.source, start=0)
    batch, ctx = objectives_lib.example_batch(4, ()), Pass(jax.random.key(0))
    params = nn.unbox(net.init(jax.random.key(1), batch, ctx.hidden, train=False)["params"])
    rng = np.random.default_rng(2)
    params = jax.tree.map(lambda x: x + jnp.float32(0.3 * rng.normal(size=x.shape)), params)
    folder.mkdir()
    added = system.ADAPTATION.added_tokens
    opened.tokenizer.with_added(added).save(opened.tokenizer_dir, folder / "tokenizer")
    checkpoints = Checkpoints(folder / "checkpoints", 1)
    checkpoints.save(Weights(params, jnp.int32(7)), {})
    checkpoints.close()
    config = json.loads((run / "config.json").read_text())
    values = {
        "task": "mnli",
        "relation": "entailment",
        "labels": ["contradiction", "entailment", "neutral"][:count],
        "regression": False,
        "seed": 0,
        "system": opened.config.system,
        "init": "0123abcd",
        "mnli_first": False,
        "model": config["model"],
        "system_options": config["system_options"],
        "data": {"train": "ab" * 32},
        "recipe": "thesis",
        "feature_layers": None,
        "head": {"kind": kind, "dropout_rate": 0.1, "pretrained": True},
        "machine": {"init": "runs/x"},
    }
    (folder / "config.json").write_text(json.dumps(values | changed))
    shape = Shape(sizes.num_heads, sizes.width, sizes.num_layers)
    result = run_files.TaskResult(
        task=changed.get("task", "mnli"), system=opened.config.system, shape=shape,
        n_model=shape.n_model, seed=0, steps=7, eval={"dev": {"accuracy": 0.5}},
    )  # fmt: skip
    run_files.write_result(folder, result)
    return net, params


def values(cache_dir: pathlib.Path, **fields: Any) -> dict[str, Any]:
    made = tiny.config_module("finetune").get_config().to_dict()
    small = {
        "epochs": 1.0, "batch_size": 2, "max_len": 64, "lm_weight": 0.0,
        "machine.cache_dir": str(cache_dir),
        "machine.compile_cache_dir": None, "machine.eval_batch_size": 4,
    }  # fmt: skip
    return override(made, small | {k.replace("__", "."): v for k, v in fields.items()})


def prepare(init: pathlib.Path, task: str, data: pathlib.Path, folder: pathlib.Path, **config: Any):
    start, task_of = warm_start.open_start(str(init)), load_task(task)
    return TaskRun(task_of, load(task_of, data, tests=False), start, resolve(config), folder)


def from_elsewhere(
    run: pathlib.Path, folder: pathlib.Path, kind: str, labels: list[str]
) -> pathlib.Path:
    """A classifier of these classes that came from elsewhere; returns its run folder."""
    make(run, folder / "run", kind, len(labels), labels=labels)
    exporting.run(folder / "run", folder / "out")
    importing.run(str(folder / "out"), folder / "back")
    return folder / "back"
