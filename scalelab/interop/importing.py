"""A folder in Hugging Face layout becomes a run folder.

A net becomes what `pretrained.load` opens, a classifier what a seed of a fine-tuning leaves.
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
from scalelab.interop import classifiers, convert, settings, target
from scalelab.interop import folder as folder_lib
from scalelab.interop.folder import Folder
from scalelab.interop.source import FIELDS, Source
from scalelab.resources import flops
from scalelab.runs import environment, run_folder
from scalelab.runs.checkpoint import Checkpoints

CORPUS = "imported"  # stands where a pre-training has its corpus


@flax.struct.dataclass
class Weights:
    """What the checkpoint holds, as that of a finished fine-tuning.

    Attributes:
      params: the net's, or {"body", "head"}.
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
      What to tell the user, line by line.

    Raises:
      ValueError: the source is not as it should be, or the folder is in use.
    """
    place = target.check(workdir, "--workdir", again=False)
    opened = folder_lib.open_folder(folder_lib.fetch(source))
    values, fresh, params, originals = convert_folder(opened)
    params = params | _initial(opened, values, fresh) if fresh else params
    imported = {
        "source": source,
        "architecture": opened.architecture.name,
        "fresh": fresh,
        "notes": list(opened.notes),
    }
    with target.filling(place) as partial:
        _write(opened, values, _nested(opened, params), originals, imported, partial)
    count = sum(x.size for x in params.values())
    said = [f"{workdir}: {opened.architecture.name}, {count:,} parameters, from {source}"]
    if fresh:
        said.append(f"not in the source, and initialised: {', '.join(fresh)}")
    spelt = next(iter(opened.texts.roles.values()), None)
    if spelt:
        said.append(
            f"text that spells a special token, such as {spelt}, is read as text here (fill_mask"
            " alone takes its mask)"
        )
    return said + list(opened.notes)


def convert_folder(
    opened: Folder,
) -> tuple[dict[str, Any], list[str], convert.Flat, convert.Flat]:
    """Reads a folder's tensors as our parameters.

    Returns:
      The content of config.json; paths of parameters that the folder has not; the others by path,
      those of the net without "body/"; and tensors that they alone could not give back.

    Raises:
      ValueError: shapes contradict config.json, or the map and the net do not fit each other.
    """
    values = _classifier_config(opened) if opened.architecture.classifies else _config(opened)
    ours = {path: x.shape for path, x in _abstract(opened, values).items()}
    rows = opened.family.rows(opened.architecture)
    covered = {path for r in rows for path in r.ours}
    fresh = sorted(ours.keys() - covered)
    unknown = sorted(covered - ours.keys())
    if unknown or (fresh and not opened.architecture.bare):
        raise ValueError(
            f"the map of {opened.family.system} and its net do not fit: the net has no"
            f" {unknown or 'more'}, the map no {fresh or 'more'}"
        )
    opened.check_shapes(ours)
    opened.check_tied()
    params, originals = convert.to_ours(rows, opened.read, opened.sizes)
    assert {path: x.shape for path, x in params.items()} == {path: ours[path] for path in covered}
    originals |= {name: opened.read(name) for name in opened.unused}
    if opened.architecture.classifies:
        params |= classifiers.unfolded(opened.path, params)
    return values, fresh, params, originals


# --- What our net of that shape is ---------------------------------------------------------------


def _config(opened: Folder) -> dict[str, Any]:
    """The config of a pre-training that could have made the checkpoint."""
    values = pretrain_values(opened.family.system, CORPUS)
    objectives, max_len = opened.architecture.serves, opened.fields["max_len"]
    values["objective"] = "+".join(objectives)
    values["data"]["format"] = "segment_pair" if "nsp" in objectives else "doc_sentences"
    values["net"] |= _net_fields(opened)
    values["tokenizer"] = {
        "kind": opened.texts.kind,
        "vocab_size": opened.texts.vocab_size,
        "lowercase": opened.texts.lowercase,
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
    """Of a fine-tuning's config.json what a checkpoint of others tells."""
    count, labels = opened.num_classes, settings.labels_of(opened.config)
    assert count is not None
    if len(labels) != count and opened.config.get("id2label"):
        raise ValueError(
            f"config.json names {len(labels)} classes ({', '.join(labels[:5])}), the classifier"
            f" {opened.names[opened.family.classes]} has {count}"
        )
    if len(labels) != count:
        labels = [f"LABEL_{i}" for i in range(count)]
    dropout = settings.rate(opened.config, "classifier_dropout")
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
        "labels": labels,
        "regression": settings.is_regression(opened.config, count),
        "machine": {"init": "none"},
    }


def _abstract(opened: Folder, values: dict[str, Any]) -> dict[str, Any]:
    """Shapes of our parameters, by path; those of the net without "body/"."""
    if opened.architecture.classifies:
        assert opened.num_classes is not None
        kind, vocab_size = values["head"]["kind"], opened.texts.vocab_size
        return shapes(values["system"], values["net"], kind, opened.num_classes, vocab_size)
    key = jax.random.key(0)
    return convert.flatten(jax.eval_shape(lambda: _fresh(opened, values, key)))


def _fresh(opened: Folder, values: dict[str, Any], key: jax.Array) -> Any:
    """Initial parameters of the net that `values` describe."""
    config = config_lib.resolve(values)
    roles = opened.texts.roles
    ids = {role: opened.texts.backend.token_to_id(text) for role, text in roles.items()}
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


def _initial(opened: Folder, values: dict[str, Any], paths: list[str]) -> convert.Flat:
    """Initial values of the parameters that the source has not."""

    def init(key: jax.Array) -> dict[str, jax.Array]:
        flat = convert.flatten(_fresh(opened, values, key))
        return {path: flat[path] for path in paths}

    return {path: np.asarray(x) for path, x in jax.jit(init)(jax.random.key(0)).items()}


# --- The run folder ------------------------------------------------------------------------------


def _nested(opened: Folder, params: convert.Flat) -> dict[str, Any]:
    for path, x in params.items():
        params[path] = jax.device_put(x)  # no copy, on CPU; checksums and orbax would make some
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
    opened.texts.save(workdir / "tokenizer")
    run_folder.describe(workdir, values)
    largest = max(x.nbytes for x in jax.tree.leaves(params))
    checkpoints = Checkpoints(workdir / "checkpoints", 1, write_bytes=largest)
    checkpoints.save(Weights(params, jnp.int32(0)), {})
    checkpoints.close()
    sizes = {name: getattr(opened.sizes, name) for name in ("vocab_rows", "num_segments")}
    fields = {name: opened.config[name] for name in FIELDS if name in opened.config}
    if opened.architecture.classifies:
        fields.setdefault("problem_type", None)  # judged by labels, then
    Source(sizes, opened.dtypes(), fields, originals).save(workdir)
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
