"""Exports: writes a folder in Hugging Face layout for a run folder."""

import dataclasses
import json
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from scalelab import systems
from scalelab.data.tokenizers import Tokenizer
from scalelab.finetuning import imported
from scalelab.finetuning.imported import TASK
from scalelab.interop import config_json, convert, maps, output_folder, side_files
from scalelab.interop import tokenizer as tokenizer_lib
from scalelab.interop.mapping import Architecture, Map
from scalelab.interop.side_files import SourceFacts
from scalelab.interop.tensors import SINGLE_FILE
from scalelab.interop.tokenizer import Frame
from scalelab.interop.transforms import Sizes
from scalelab.lab.show import card
from scalelab.runs import pretrained, run_folder
from scalelab.runs.checkpoint import Checkpoints

PADDING = ("<pad>", "<|padding|>")  # new tokens, if none of the tokenizer's can pad
PIPELINES = {"mlm": "fill-mask", "clm": "text-generation", "classify": "text-classification"}


@dataclasses.dataclass
class ExportedRun:
    """A run and what it becomes.

    Attributes:
      path: its folder.
      config: the content of its config.json.
      family: its map.
      architecture: the class that it becomes.
      flat: its parameters by path, those of the net without "body/".
      tokenizer: its tokenizer.
      step: the step of the parameters.
      labels: names of its classes; None if it is no classifier.
      regression: True if it fits one score.
      remarks: remarks for the model card.
    """

    path: pathlib.Path
    config: dict[str, Any]
    family: Map
    architecture: Architecture
    flat: convert.Flat
    tokenizer: Tokenizer
    step: int
    labels: list[str] | None = None
    regression: bool = False
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
    values = run_folder.read_json(source / "config.json") if source.is_dir() else None
    if not isinstance(values, dict):
        below = sorted(p.parent.name for p in source.glob("*/config.json"))
        raise ValueError(
            f"{source} holds several runs ({', '.join(below[:8])}): export one of them, such as"
            f" {source}/{below[0]}"
            if below
            else f"no run in {str(source)!r}: expected a folder with config.json, which a training"
            " or fine-tuning writes"
        )
    run_folder.check_ours(source, values)
    exported = _open_classifier(source, values) if "task" in values else _open_net(source)
    with output_folder.filling(place, output_folder.list_exported(place) or ()) as partial:
        _write(exported, partial, dtype)
    name = exported.architecture.name
    lines = [f"{to}: {name}; load it with {name}.from_pretrained({str(to)!r})", *exported.remarks]
    if "mlm" not in exported.architecture.heads:  # users of an MLM write the mask into texts
        lines.append("note: special tokens inside a text are tokenized as plain text")
    return lines


# --- Opening the run -----------------------------------------------------------------------------


def _open_net(path: pathlib.Path) -> ExportedRun:
    opened = pretrained.load(path)
    family = maps.load(opened.config.system)
    result = run_folder.read_json(path / "result.json") or {}
    source = result.get("imported") or {}
    fresh = source.get("fresh") or []
    flat = {k: np.asarray(x) for k, x in convert.flatten(opened.params).items() if k not in fresh}
    fitting = [
        a
        for a in family.variants
        if not a.classifies and {p for r in family.rows(a) for p in r.ours} == flat.keys()
    ]
    if not fitting:
        raise ValueError(
            f"no class of transformers holds a {opened.config.system} trained with"
            f" {opened.config.objective}: there are"
            f" {', '.join(a.name for a in family.architectures)}"
        )
    architecture = next((a for a in fitting if a.name == source.get("architecture")), fitting[0])
    config = run_folder.read_json(path / "config.json") or {}
    exported = ExportedRun(path, config, family, architecture, flat, opened.tokenizer, opened.step)
    if fresh:
        exported.remarks.append("without prediction heads, which the imported checkpoint lacked")
    return exported


def _open_classifier(path: pathlib.Path, values: dict[str, Any]) -> ExportedRun:
    imported.check_config(path, values)
    family = maps.load(values["system"])
    architecture = next(a for a in family.architectures if a.classifies)
    _check_classifier(values, family, architecture)
    flat, step = _restore_classifier(path)
    flat.pop("output_embed/table", None)  # trained beside the task; the class scores no tokens
    tokenizer = tokenizer_lib.load_run_tokenizer(path / "tokenizer")
    count = imported.check_shapes(path, values, flat, tokenizer.vocab_size)
    labels = imported.class_names(values) or [f"LABEL_{i}" for i in range(count)]
    return ExportedRun(
        path, values, family, architecture, flat, tokenizer, step, labels, values["regression"]
    )


def _restore_classifier(path: pathlib.Path) -> tuple[convert.Flat, int]:
    """Returns the parameters of a fine-tuning by path, without "body/", and the step."""
    if not (path / "checkpoints").is_dir():
        raise ValueError(f"{path} has no parameters: {path}/checkpoints is missing")
    checkpoints = Checkpoints(path / "checkpoints", num_last=None)
    restored = checkpoints.restore(None)
    checkpoints.close()
    if restored is None:
        raise ValueError(f"{path} has no parameters: the fine-tuning has not finished")
    state = restored[0]
    flat = imported.flat(state["params"])
    return {name: np.asarray(x) for name, x in flat.items()}, int(state["step"])


def _check_classifier(values: dict[str, Any], family: Map, architecture: Architecture) -> None:
    """Refuses a classifier that the family's class cannot compute."""
    head, reasons = values["head"]["kind"], []
    if head != family.head_kind:
        layers = {"double": "two layers", "single": "one layer"}
        reasons.append(f"its head has {layers[head]}, the class's has {layers[family.head_kind]}")
    both = systems.load(values["system"]).ADAPTATION.both_orders
    if both and values.get("relation") == "similarity" and not _reads_as_imported(values):
        reasons.append("it reads a pair in both orders, the class in one")
    if values.get("feature_layers"):
        reasons.append("its head reads several layers, the class's only the last")
    if reasons:
        raise ValueError(
            f"{architecture.name} cannot hold this run: {'; '.join(reasons)}. transformers has no"
            f" other class for a {values['system']} that classifies"
        )


def _reads_as_imported(values: dict[str, Any]) -> bool:
    """Returns True if a classifier reads pairs once, in its tokenizer's frame, as imports do."""
    return values["task"] == TASK or values.get("frame") == "imported"


# --- Writing the files ---------------------------------------------------------------------------


def _write(exported: ExportedRun, to: pathlib.Path, dtype: str | None) -> None:
    net, ids = exported.config["net"], exported.tokenizer.special_ids
    facts, originals = side_files.load_source(exported.path)
    count = len(exported.flat["embed/tokens/table"])
    sizes = Sizes(net["num_heads"], net["num_layers"], count, count)
    sizes = dataclasses.replace(sizes, **facts.sizes)
    frame = pad = None
    if exported.architecture.classifies and not _reads_as_imported(exported.config):
        adapted = systems.load(exported.family.system).ADAPTATION
        frame = (adapted.begin, adapted.between, adapted.end)
    if exported.architecture.classifies and exported.config["task"] != TASK:
        pad = _choose_padding(exported, frame)
    if pad is not None:
        ids = ids | {"pad": exported.tokenizer.with_added([pad]).token_id(pad)}
        # A new token gets a row of zeros, which nothing reads.
        sizes = dataclasses.replace(sizes, vocab_rows=max(sizes.vocab_rows, ids["pad"] + 1))
    _write_tensors(exported, to, dtype, sizes, facts, originals)
    fields = net | {"ffn_width": net["ffn_width"] or 4 * net["width"]}
    fields |= {"vocab_size": sizes.vocab_rows, "num_segments": sizes.num_segments}
    config = config_json.make_config(
        exported.family, exported.architecture, fields, ids, exported.labels, exported.regression
    )
    _write_json(to / "config.json", config | facts.fields)
    tokenizer_lib.export(
        exported.path / "tokenizer",
        to,
        special_as_text="mlm" not in exported.architecture.heads,
        inputs=exported.family.inputs,
        max_len=net["max_len"],
        frame=frame,
        pad=pad,
    )
    (to / "README.md").write_text(_make_card(exported), encoding="utf-8")
    environment = run_folder.read_json(exported.path / "environment.json") or {}
    marker = {
        "system": exported.config["system"],
        "step": exported.step,
        "git_commit": environment.get("git_commit"),
        "files": sorted(p.name for p in to.iterdir()),
    }
    _write_json(to / output_folder.MARKER, marker)


def _choose_padding(exported: ExportedRun, frame: Frame | None) -> str | None:
    """Returns the token that pads batches of a classifier trained here; None: the tokenizer's.

    GPT's class reads the last token that is not padding. Padding must therefore be no token that
    can end a text, so it may differ from the padding of an imported config.json.

    Args:
      exported: the run.
      frame: special tokens around its texts; None: its tokenizer's own.
    """
    tokenizer = exported.tokenizer
    roles = {role: tokenizer.token(i) for role, i in tokenizer.special_ids.items()}
    if "pad" in roles and not systems.load(exported.family.system).CAUSAL:
        return None
    if frame is None:
        own = tokenizer.frame()
        frame = tuple(tuple(map(tokenizer.token, ids)) for ids in (own.begin, own.between, own.end))
    begin, between, end = frame
    last = end[-1] if end else None
    if not end and tokenizer_lib.has_unknown_token(exported.path / "tokenizer"):
        last = roles.get("unk")  # may end a text
    special = [roles[role] for role in ("pad", "eos", "bos") if role in roles]
    found = [*special[: "pad" in roles], *begin, *between, *special["pad" in roles :], *PADDING]
    return next(text for text in found if text != last)


def _write_tensors(
    exported: ExportedRun,
    to: pathlib.Path,
    dtype: str | None,
    sizes: Sizes,
    facts: SourceFacts,
    originals: convert.Flat,
) -> None:
    family, architecture, flat = exported.family, exported.architecture, exported.flat
    rows = family.rows(architecture)
    folded: convert.Flat = {}
    if architecture.classifies and family.head_kind == "single":
        folded = side_files.fold_bias(flat, family, architecture.name)
    tensors = convert.to_theirs(rows, flat | folded, sizes)
    if convert.originals_match(rows, flat, originals, sizes):
        tensors |= originals
    dtypes = facts.dtypes if dtype is None else dict.fromkeys(tensors, dtype)
    tensors = {name: _round(name, x, dtypes.get(name, "float32")) for name, x in tensors.items()}
    named = {convert.stored_name(name, family, architecture): x for name, x in tensors.items()}
    save_file(named, to / SINGLE_FILE, metadata={"format": "pt"})
    found = sorted({x.dtype.name for x in tensors.values()})
    if found != ["float32"]:
        origin = "as in the imported checkpoint" if dtype is None else "rounded"
        exported.remarks.append(f"its parameters are stored in {' and '.join(found)}, {origin}")
    if folded:
        exported.remarks.append(
            f"{architecture.name} has no bias on its scores: the run's bias is in the shift of the"
            " last norm, which gives the same scores and other last hidden states"
        )
    if folded and found == ["float32"]:
        side_files.save_unfolded({path: flat[path] for path in folded}, to)
        exported.remarks.append(f"{side_files.UNFOLDED} keeps both unchanged, for an import")


def _round(name: str, x: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds a tensor to a dtype.

    Raises:
      ValueError: it has values that the dtype cannot hold.
    """
    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype))
    largest = float(np.max(np.abs(x), where=np.isfinite(x), initial=0))
    if largest > float(ml_dtypes.finfo(wanted).max):
        raise ValueError(f"{name} has values up to {largest:.3g}, too large for --dtype={dtype}")
    return x.astype(wanted, copy=False)


def _make_card(exported: ExportedRun) -> str:
    """Makes the model card: the run's card below the fields that the hub reads."""
    architecture = exported.architecture
    front = ["---", "library_name: transformers"]
    front += [f"pipeline_tag: {p}" for head, p in PIPELINES.items() if head in architecture.heads]
    front += ["tags:", "- scalelab", f"- {exported.config['system']}", "---", ""]
    return (
        "\n".join(front)
        + "\n"
        + card.write(
            exported.path,
            step=exported.step,
            loads=f"load it with `{architecture.name}.from_pretrained`",
            params=sum(x.size for x in exported.flat.values()),
            remarks=exported.remarks,
        )
    )


def _write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
