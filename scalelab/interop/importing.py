"""Imports: writes a run folder for a folder in Hugging Face layout.

A model becomes a finished pre-training, a classifier a finished seed of a fine-tuning.
"""

import dataclasses
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from scalelab import formats, objectives, systems
from scalelab.config.pretraining import Net, resolve
from scalelab.data import tokenizers
from scalelab.finetuning import imported, kinds
from scalelab.interop import config_json, output_folder
from scalelab.interop import folder as folder_lib
from scalelab.interop.folder import Folder
from scalelab.interop.mapping import Map
from scalelab.records import json_files, run_files, run_folder
from scalelab.records.run_files import RunResult, TaskResult
from scalelab.resources import flops, host
from scalelab.training import pretrained
from scalelab.training.checkpoint import Checkpoints, Weights

CORPUS = "imported"  # the value of config.data.corpus


def run(source: str, workdir: pathlib.Path) -> list[str]:
    """Imports a checkpoint, a folder or a hub's name, as a new run; returns lines for the user.

    Raises:
      ValueError: the source is damaged or not supported, or the folder is in use.
    """
    place = output_folder.check(workdir, "--workdir", replace=False)
    opened = folder_lib.open_folder(folder_lib.fetch(source))
    architecture, params = opened.architecture, opened.params
    values = (_classifier_values if architecture.kind else _pretrain_values)(opened)
    try:
        _check_shapes(opened, values)
    except ValueError as error:
        raise ValueError(_with_keys(str(error), opened.family)) from None
    origin = {"source": source, "architecture": architecture.name, "notes": opened.remarks}
    with output_folder.filling(place) as partial:
        _write(opened, values, origin, partial)
    count = sum(x.size for x in params.values())
    lines = [
        f"{workdir}: {architecture.name}, {count:,} parameters, from {source}",
        "note: special tokens inside a text are plain text, except the mask in fill_mask",
    ]
    return lines + opened.remarks


def _pretrain_values(opened: Folder) -> dict[str, Any]:
    """Returns the config of a pre-training that could have made the checkpoint."""
    values = imported.pretrain_values(opened.family.system, CORPUS, opened.fields["max_len"])
    names = opened.architecture.heads
    values["objective"] = "+".join(names)
    needed = [array for name in names for array in objectives.load(name).NEEDS]
    able = formats.declarations(needed[0]) if needed else ("doc_sentences",)
    if values["data"]["format"] not in able:
        values["data"]["format"] = next(iter(able))
    values["model"] |= _net_values(opened)
    values["system_options"] = _options(opened)
    values["objective_options"] = dict(opened.architecture.objective_options)
    values["tokenizer"] = {
        "kind": opened.tokenizer.kind,
        "vocab_size": opened.tokenizer.vocab_size,
        "lowercase": opened.tokenizer.lowercase,
    }
    return dataclasses.asdict(resolve(values))


def _net_values(opened: Folder) -> dict[str, Any]:
    names = ("num_heads", "width", "num_layers", "ffn_width", "max_len")
    names += tuple(choice.name for choice in opened.family.choices)
    return {name: opened.fields[name] for name in names} | {
        "dropout_rate": opened.dropout_rate,
        "dtype": "float32",
        "output_embedding": "untied" if opened.architecture.untied else None,
    }


def _options(opened: Folder) -> dict[str, Any]:
    """Returns the options of the system that the classes need, and those of config.json."""
    family = opened.family
    return dict(family.required) | {
        x.name: opened.fields.get(x.name) for x in (*family.options, *family.option_choices)
    }


def _classifier_values(opened: Folder) -> dict[str, Any]:
    """Returns the fields of a fine-tuning's config that a checkpoint determines."""
    family, dropout = opened.family, opened.family.head_dropout
    default = opened.dropout_rate if dropout.default is None else dropout.default
    num_classes = len(opened.params["head/out/bias"])
    kind = opened.architecture.kind or ""
    labels, regression = None, False
    if kinds.load(kind).NUM_OUTPUTS is None:
        labels, regression = config_json.read_classes(opened.config, num_classes)
    return {
        "task": imported.TASK,
        "seed": 0,
        "system": family.system,
        "init": "none",
        "mnli_first": False,
        "model": _net_values(opened),
        "system_options": _options(opened),
        "head": {
            "kind": family.head_kind(kind),
            "dropout_rate": config_json.read_rate(opened.config, dropout.key, default),
            "pretrained": False,
        },
        "labels": labels,
        "regression": regression and kind == "classify",
        "kind": kind,
        "machine": {"init": "none"},
    }


def _with_keys(message: str, family: Map) -> str:
    """Returns a message about a config with the names that its fields have in config.json."""
    groups = {"model": family.fields, "system_options": family.options}
    for group, fields in groups.items():
        for field in fields:
            message = re.sub(rf"\b(config\.)?{group}\.{field.name}\b", field.key, message)
    return message


def _check_shapes(opened: Folder, values: dict[str, Any]) -> None:
    """Raises ValueError if the parameters do not fit the model that `values` describe."""
    path, params = opened.path, opened.params
    if opened.architecture.kind:
        config = json_files.fill(imported.ClassifierConfig, values, path / "config.json")
        imported.check_shapes(path, config, params, opened.tokenizer.vocab_size)
        return
    ids = opened.tokenizer.special_ids
    made = nn.unbox(pretrained.abstract_params(resolve(values), ids, {}))
    pretrained.compare_shapes(path, params, traverse_util.flatten_dict(made, sep="/"))


def _write(
    opened: Folder, values: dict[str, Any], origin: dict[str, Any], workdir: pathlib.Path
) -> None:
    """Writes the run folder, result.json last."""
    opened.tokenizer.save(workdir / "tokenizer")
    run_folder.write_description(workdir, values, tokenizers.digest(workdir / "tokenizer"))
    params = opened.params
    for path, x in params.items():
        params[path] = jax.device_put(x)  # one by one, since orbax would copy all
    tree = traverse_util.unflatten_dict(params, sep="/")
    if opened.architecture.kind:
        head = tree.pop("head")
        tree = {"body": tree, "head": head}
    largest = max(x.nbytes for x in params.values())
    checkpoints = Checkpoints(workdir / "checkpoints", 1, write_bytes=largest)
    checkpoints.save(Weights(tree, jnp.int32(0)), {})
    checkpoints.close()
    net, module = Net(**values["model"]), systems.load(values["system"])
    common = {
        "system": values["system"],
        "shape": net.shape,
        "n_model": systems.n_model(module, net, values["system_options"]),
        "seed": 0,
        "params": flops.count_parameters(tree),
        "imported": origin,
        "peak_memory_bytes": host.peak_memory_bytes(),
    }
    task = values.get("task")
    result = RunResult(**common) if task is None else TaskResult(task=task, **common)
    run_files.write_result(workdir, result)
