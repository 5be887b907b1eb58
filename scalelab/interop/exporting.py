"""Exports: writes a folder in Hugging Face layout for a run folder."""

import dataclasses
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
from flax import traverse_util
from safetensors.numpy import save_file

from scalelab import systems
from scalelab.data.tokenizers import Tokenizer
from scalelab.finetuning import imported
from scalelab.finetuning.imported import TASK
from scalelab.helpers.files import write_json, write_text
from scalelab.interop import config_json, convert, maps, output_folder, side_files
from scalelab.interop import tokenizer as tokenizer_lib
from scalelab.interop.mapping import Architecture, Map
from scalelab.interop.side_files import WEIGHTS
from scalelab.lab.show import card
from scalelab.runs import pretrained, run_folder

PADDING = "<|padding|>"  # a new token of classifiers with the frame of an import
PIPELINES = {"masked": "fill-mask", "next": "text-generation"}  # by what a class predicts


@dataclasses.dataclass
class ExportedRun:
    """A run, and the class of `transformers` that it becomes; only a classifier has labels.

    `flat` maps paths to parameters; `remarks` go to the user and into the model card.
    """

    path: pathlib.Path
    config: dict[str, Any]
    family: Map
    architecture: Architecture
    flat: convert.Flat
    tokenizer: Tokenizer
    step: int
    labels: list[str] | None = None
    remarks: list[str] = dataclasses.field(default_factory=list)


def run(source: pathlib.Path, to: pathlib.Path, dtype: str | None = None) -> list[str]:
    """Exports a run.

    Args:
      source: a run folder: a pre-training, or one seed of a fine-tuning.
      to: the folder to write; files of an earlier export there are replaced, others stay.
      dtype: "float32", "float16" or "bfloat16" of the stored tensors; None: the dtypes that an
        imported checkpoint had, else float32.

    Returns:
      Lines for the user.

    Raises:
      ValueError: there is no run, `transformers` has no class for it, or the folder is in use.
    """
    place = output_folder.check(to, "--to", replace=True)
    values = run_folder.read_json(source / "config.json") or {}
    exported = (_open_classifier if "task" in values else _open_net)(source, values)
    with output_folder.filling(place) as partial:
        _write(exported, partial, dtype)
    name = exported.architecture.name
    lines = [f"{to}: {name}; load it with {name}.from_pretrained({str(to)!r})", *exported.remarks]
    if exported.architecture.predicts != "masked":  # else users write the mask into texts
        lines.append("note: special tokens inside a text are tokenized as plain text")
    return lines


def _open_net(path: pathlib.Path, values: dict[str, Any]) -> ExportedRun:
    opened = pretrained.load(path)
    family = maps.load(opened.config.system)
    params = traverse_util.flatten_dict(opened.params, sep="/")
    flat = {name: np.asarray(x) for name, x in params.items()}
    for a in family.variants:
        if {path for row in family.rows(a) for path in row.ours} == flat.keys():
            return ExportedRun(path, values, family, a, flat, opened.tokenizer, opened.step)
    raise ValueError(
        f"transformers has no class for a {opened.config.system} with {opened.config.objective};"
        f" its classes are {', '.join(a.name for a in family.architectures)}"
    )


def _open_classifier(path: pathlib.Path, values: dict[str, Any]) -> ExportedRun:
    imported.check_config(path, values)
    family, kind = maps.load(values["system"]), values["head"]["kind"]
    architecture = next(a for a in family.architectures if a.classifies)
    both = systems.load(values["system"]).ADAPTATION.both_orders
    reasons = {
        f"its head is {kind!r}, the class has {family.head_kind!r}": kind != family.head_kind,
        "it reads a pair in both orders, the class in one order": both
        and values.get("relation") == "similarity"
        and not _reads_as_imported(values),
        "its head reads several layers, the class only the last": values.get("feature_layers"),
    }
    if any(reasons.values()):
        raise ValueError(
            f"{architecture.name} cannot represent this run:"
            f" {'; '.join(reason for reason, holds in reasons.items() if holds)}"
        )
    params = imported.flat(pretrained.load_trained(path))
    flat = {name: np.asarray(x) for name, x in params.items()}
    flat.pop("output_embed/table", None)  # trained beside the task; the class scores no tokens
    tokenizer = Tokenizer.load(path / "tokenizer")
    count = imported.check_shapes(path, values, flat, tokenizer.vocab_size)
    labels = imported.class_names(values) or [f"LABEL_{i}" for i in range(count)]
    step = (run_folder.read_json(path / "result.json") or {}).get("steps", 0)
    return ExportedRun(path, values, family, architecture, flat, tokenizer, step, labels)


def _reads_as_imported(values: dict[str, Any]) -> bool:
    """Returns True if a classifier reads pairs once, in its tokenizer's frame, as imports do."""
    return values["task"] == TASK or values.get("frame") == "imported"


def _write(exported: ExportedRun, to: pathlib.Path, dtype: str | None) -> None:
    family, architecture, net = exported.family, exported.architecture, exported.config["net"]
    ids = exported.tokenizer.special_ids
    facts, originals = side_files.load_source(exported.path)
    count = len(exported.flat[family.token_table])
    given = {"vocab_rows": count} | facts.sizes
    sizes = convert.Sizes(net["num_heads"], net["num_layers"], vocab_size=count, **given)
    frame = pad = None
    module = systems.load(family.system)
    if architecture.classifies and not _reads_as_imported(exported.config):
        frame = (module.ADAPTATION.begin, module.ADAPTATION.between, module.ADAPTATION.end)
    if architecture.classifies and module.SEES == "left" and exported.config["task"] != TASK:
        # The class reads the last token that is not padding, so no text may end in padding's id.
        pad = frame[0][0] if frame else PADDING
    roles = {role: exported.tokenizer.token(i) for role, i in ids.items()}
    if pad is not None:
        roles["pad"] = pad
        ids = ids | {"pad": exported.tokenizer.with_added([pad]).token_id(pad)}
        # A new token gets a row of zeros, which nothing reads.
        sizes = dataclasses.replace(sizes, vocab_rows=max(sizes.vocab_rows, ids["pad"] + 1))
    _write_tensors(exported, to, dtype, sizes, facts.dtypes, originals)
    fields = net | {"ffn_width": net["ffn_width"] or 4 * net["width"]}
    fields |= {"vocab_size": sizes.vocab_rows, "num_segments": sizes.num_segments}
    regression = bool(exported.config.get("regression"))
    config = config_json.make_config(family, architecture, fields, ids, exported.labels, regression)
    write_json(to / "config.json", config | facts.fields)
    tokenizer_lib.export(
        exported.path / "tokenizer",
        to,
        roles,
        special_as_text=architecture.predicts != "masked",
        inputs=family.inputs,
        max_len=net["max_len"],
        frame=frame,
    )
    write_text(to / "README.md", _make_card(exported))
    environment = run_folder.read_json(exported.path / "environment.json") or {}
    files = sorted(p.name for p in to.iterdir())
    marker = {"git_commit": environment.get("git_commit"), "files": files}
    write_json(to / output_folder.MARKER, {"system": family.system, "step": exported.step} | marker)


def _write_tensors(
    exported: ExportedRun,
    to: pathlib.Path,
    dtype: str | None,
    sizes: convert.Sizes,
    dtypes: dict[str, str],
    originals: convert.Flat,
) -> None:
    """Writes the tensors, and a side file where the class lacks a parameter of ours."""
    family, architecture, flat = exported.family, exported.architecture, exported.flat
    folded: convert.Flat = {}
    if architecture.classifies and family.head_kind == "single":
        folded = side_files.fold_bias(flat, family, architecture.name)
    tensors = convert.to_theirs(family.rows(architecture), flat | folded, sizes) | originals
    dtypes = dtypes if dtype is None else dict.fromkeys(tensors, dtype)
    tensors = {name: _round(name, x, dtypes.get(name, "float32")) for name, x in tensors.items()}
    save_file(tensors, to / WEIGHTS, metadata={"format": "pt"})
    found = sorted({x.dtype.name for x in tensors.values()})
    if found != ["float32"]:
        origin = "as in the imported checkpoint" if dtype is None else "rounded"
        exported.remarks.append(f"its parameters are stored in {' and '.join(found)}, {origin}")
    if folded:
        exported.remarks.append(
            f"{architecture.name} has no bias on its scores, so the run's bias was moved into the"
            " last norm: scores are the same, the last hidden states are not"
        )
        if found == ["float32"]:
            side_files.save_unfolded({path: flat[path] for path in folded}, to)
            exported.remarks.append(f"{side_files.UNFOLDED} keeps the originals for an import")


def _round(name: str, x: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds a tensor to a dtype; raises ValueError for values that it cannot hold."""
    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype))
    largest = float(np.max(np.abs(x), where=np.isfinite(x), initial=0))
    if largest > float(ml_dtypes.finfo(wanted).max):
        raise ValueError(f"{name} has values up to {largest:.3g}, too large for --dtype={dtype}")
    return x.astype(wanted, copy=False)


def _make_card(exported: ExportedRun) -> str:
    """Makes the model card: the run's card below the fields that the hub reads."""
    architecture = exported.architecture
    pipeline = (
        "text-classification"
        if architecture.classifies
        else PIPELINES.get(architecture.predicts or "")
    )
    pipeline = f"pipeline_tag: {pipeline}\n" if pipeline else ""
    tags = f"tags:\n- scalelab\n- {exported.family.system}\n"
    return f"---\nlibrary_name: transformers\n{pipeline}{tags}---\n\n" + card.write(
        exported.path,
        step=exported.step,
        loads=f"load it with `{architecture.name}.from_pretrained`",
        params=sum(x.size for x in exported.flat.values()),
        remarks=exported.remarks,
    )
