"""Imports: writes a run folder for a folder in Hugging Face layout.

A net becomes a finished pre-training, a classifier a finished seed of a fine-tuning.
"""

import dataclasses
import pathlib
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from scalelab import objectives, state, systems
from scalelab.config import pretraining as config_lib
from scalelab.finetuning.imported import TASK, pretrain_values, shapes
from scalelab.helpers.files import write_json
from scalelab.interop import config_json, convert, output_folder, side_files
from scalelab.interop import folder as folder_lib
from scalelab.interop.folder import Folder
from scalelab.resources import flops
from scalelab.runs import environment, run_folder
from scalelab.runs.checkpoint import Checkpoints

CORPUS = "imported"  # the value of config.data.corpus


@flax.struct.dataclass
class Weights:
    """The state in the checkpoint: that of a finished fine-tuning.

    Attributes:
      params: parameters of the net, or {"body", "head"}.
      step: 0.
    """

    params: Any
    step: jax.Array


def run(source: str, workdir: pathlib.Path) -> list[str]:
    """Imports a checkpoint.

    Args:
      source: a folder, or a name on the hub.
      workdir: the run folder to make.

    Returns:
      Lines for the user.

    Raises:
      ValueError: the source is damaged or not supported, or the folder is in use.
    """
    place = output_folder.check(workdir, "--workdir", replace=False)
    opened = folder_lib.open_folder(folder_lib.fetch(source))
    values, fresh, params, originals = convert_folder(opened)
    params = params | _init_missing(opened, values, fresh) if fresh else params
    imported = {
        "source": source,
        "architecture": opened.architecture.name,
        "fresh": fresh,
        "notes": list(opened.remarks),
    }
    with output_folder.filling(place) as partial:
        _write(opened, values, _to_tree(opened, params), originals, imported, partial)
    count = sum(x.size for x in params.values())
    lines = [f"{workdir}: {opened.architecture.name}, {count:,} parameters, from {source}"]
    if fresh:
        lines.append(f"not in the source, so initialized: {', '.join(fresh)}")
    example = next(iter(opened.tokenizer.roles.values()), None)
    if example:
        lines.append(
            f"note: {example} and other special tokens inside a text are tokenized as plain text"
            " (fill_mask accepts its mask)"
        )
    return lines + list(opened.remarks)


def convert_folder(
    opened: Folder,
) -> tuple[dict[str, Any], list[str], convert.Flat, convert.Flat]:
    """Converts a folder's tensors to our parameters.

    Returns:
      The content of the run's config.json; paths of parameters that the folder lacks; the other
      parameters by path, without "body/"; and the tensors that they cannot restore bit for bit.

    Raises:
      ValueError: shapes contradict config.json, or the map does not fit the net.
    """
    values = _classifier_config(opened) if opened.architecture.classifies else _config(opened)
    ours = {path: x.shape for path, x in _abstract(opened, values).items()}
    rows = opened.family.rows(opened.architecture)
    covered = {path for r in rows for path in r.ours}
    fresh = sorted(ours.keys() - covered)
    unknown = sorted(covered - ours.keys())
    if unknown or (fresh and not opened.architecture.bare):
        raise ValueError(
            f"the map of {opened.family.system} does not fit its net: the net lacks"
            f" {unknown or 'nothing'}, the map lacks {fresh or 'nothing'}"
        )
    opened.check_shapes(ours)
    opened.check_tied()
    params, originals = convert.to_ours(rows, opened.read, opened.sizes)
    assert {path: x.shape for path, x in params.items()} == {path: ours[path] for path in covered}
    originals |= {name: opened.read(name) for name in opened.unused}
    if opened.architecture.classifies:
        params |= side_files.load_unfolded(opened.path, params)
    return values, fresh, params, originals


# --- Our net of that shape -----------------------------------------------------------------------


def _config(opened: Folder) -> dict[str, Any]:
    """Returns the config of a pre-training that could have made the checkpoint."""
    values = pretrain_values(opened.family.system, CORPUS)
    objectives, max_len = opened.architecture.serves, opened.fields["max_len"]
    values["objective"] = "+".join(objectives)
    values["data"]["format"] = "segment_pair" if "nsp" in objectives else "doc_sentences"
    values["net"] |= _net_fields(opened)
    values["tokenizer"] = {
        "kind": opened.tokenizer.kind,
        "vocab_size": opened.tokenizer.vocab_size,
        "lowercase": opened.tokenizer.lowercase,
    }
    for phase in ("short", "long"):
        values[phase]["max_len"] = min(values[phase]["max_len"], max_len)
    return dataclasses.asdict(config_lib.resolve(values))


def _net_fields(opened: Folder) -> dict[str, Any]:
    names = ("num_heads", "width", "num_layers", "ffn_width", "max_len", "dropout_rate")
    output = "untied" if opened.architecture.untied else None
    fields = {name: opened.fields[name] for name in names}
    return fields | {"dtype": "float32", "output_embedding": output}


def _classifier_config(opened: Folder) -> dict[str, Any]:
    """Returns the fields of a fine-tuning's config that a checkpoint determines."""
    count = opened.num_classes
    assert count is not None
    dropout = config_json.read_rate(opened.config, "classifier_dropout")
    return {
        "task": TASK,
        "seed": 0,
        "system": opened.family.system,
        "init": "none",
        "mnli_first": False,
        "net": _net_fields(opened),
        "head": {
            "kind": opened.family.head_kind,
            "dropout_rate": opened.fields["dropout_rate"] if dropout is None else dropout,
            "pretrained": False,
        },
        "labels": config_json.read_labels(opened.config, count),
        "regression": config_json.is_regression(opened.config, count),
        "machine": {"init": "none"},
    }


def _abstract(opened: Folder, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the shapes of our parameters by path, without "body/"."""
    if opened.architecture.classifies:
        assert opened.num_classes is not None
        kind, vocab_size = values["head"]["kind"], opened.tokenizer.vocab_size
        return shapes(values["system"], values["net"], kind, opened.num_classes, vocab_size)
    key = jax.random.key(0)
    return convert.flatten(jax.eval_shape(lambda: _init_net(opened, values, key)))


def _init_net(opened: Folder, values: dict[str, Any], key: jax.Array) -> Any:
    """Makes initial parameters of the net that `values` describe."""
    config = config_lib.resolve(values)
    roles = opened.tokenizer.roles
    ids = {role: opened.tokenizer.backend.token_to_id(text) for role, text in roles.items()}
    made = state.fresh(
        key,
        systems.make_net(
            systems.load(config.system), config.net, vocab_size=config.tokenizer.vocab_size
        ),
        objectives.make(
            config.objectives,
            vocab_size=config.tokenizer.vocab_size,
            special_ids=ids,
            mask_rate=config.mask_rate,
        ),
        optax.identity(),
        max_len=config.short.max_len,
    )
    return nn.unbox(made.params)


def _init_missing(opened: Folder, values: dict[str, Any], paths: list[str]) -> convert.Flat:
    """Returns initial values of the parameters that the source lacks."""

    def init(key: jax.Array) -> dict[str, jax.Array]:
        flat = convert.flatten(_init_net(opened, values, key))
        return {path: flat[path] for path in paths}

    return {path: np.asarray(x) for path, x in jax.jit(init)(jax.random.key(0)).items()}


# --- The run folder ------------------------------------------------------------------------------


def _to_tree(opened: Folder, params: convert.Flat) -> dict[str, Any]:
    for path, x in params.items():
        params[path] = jax.device_put(x)  # here without a copy, which orbax would make
    tree = convert.unflatten(params)
    if not opened.architecture.classifies:
        return tree
    head = tree.pop("head")
    return {"body": tree, "head": head}


def _write(
    opened: Folder,
    values: dict[str, Any],
    params: dict[str, Any],
    originals: convert.Flat,
    imported: dict[str, Any],
    workdir: pathlib.Path,
) -> None:
    """Writes the run folder, result.json last."""
    opened.tokenizer.save(workdir / "tokenizer")
    run_folder.describe(workdir, values)
    largest = max(x.nbytes for x in jax.tree.leaves(params))
    checkpoints = Checkpoints(workdir / "checkpoints", 1, write_bytes=largest)
    checkpoints.save(Weights(params, jnp.int32(0)), {})
    checkpoints.close()
    sizes = {name: getattr(opened.sizes, name) for name in ("vocab_rows", "num_segments")}
    fields = {name: x for name, x in opened.config.items() if name in side_files.CONFIG_FIELDS}
    if opened.architecture.classifies:
        fields.setdefault("problem_type", None)  # transformers then infers it from the labels
    facts = side_files.SourceFacts(sizes, opened.dtypes(), fields)
    side_files.save_source(workdir, facts, originals)
    net = values["net"]
    write_json(
        workdir / "result.json",
        {
            "status": "completed",
            "task": values.get("task"),
            "system": values["system"],
            "shape": {"A": net["num_heads"], "H": net["width"], "L": net["num_layers"]},
            "n_model": flops.n_model(net["width"], net["num_layers"]),
            "params": flops.count_parameters(params),
            "seed": 0,
            "steps": 0,
            "tokens": 0,
            "flops": 0.0,
            "seconds": 0.0,
            "eval": {},
            "imported": imported,
            "peak_memory_bytes": environment.peak_memory_bytes(),
        },
    )
