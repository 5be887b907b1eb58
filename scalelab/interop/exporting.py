"""A run folder becomes a folder in Hugging Face layout."""

import dataclasses
import json
import pathlib
import shutil
import uuid
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from scalelab import pretrained, run_folder, systems
from scalelab.checkpoint import Checkpoints
from scalelab.data.tokenizers import Tokenizer
from scalelab.imported import TASK
from scalelab.interop import card, convert, maps, settings, texts
from scalelab.interop.importing import ORIGINALS
from scalelab.interop.rows import Architecture, Map
from scalelab.interop.transforms import Sizes

MARK = "scalelab.json"  # tells an export of ours from the folders of others


@dataclasses.dataclass
class Exported:
    """A run as it will be written.

    Attributes:
      path: its folder.
      config: its config.json.
      family: its map.
      architecture: the class that it becomes.
      flat: its parameters by path, those of the net without "body/".
      tokenizer: its tokenizer.
      step: steps taken.
      labels: names of its classes; None: no classifier.
      regression: whether its score is fitted.
      remarks: what a reader of the model card should know.
    """

    path: pathlib.Path
    config: dict[str, Any]
    family: Map
    architecture: Architecture
    flat: dict[str, np.ndarray]
    tokenizer: Tokenizer
    step: int
    labels: list[str] | None = None
    regression: bool = False
    remarks: list[str] = dataclasses.field(default_factory=list)


def run(source: pathlib.Path, to: pathlib.Path, dtype: str = "float32") -> list[str]:
    """Exports a run.

    Args:
      source: a run folder, of a pre-training or of one seed of a fine-tuning.
      to: where to; made if absent, written anew if it is an earlier export.
      dtype: of the stored tensors: "float32", or "float16", to which they are rounded.

    Returns:
      What to tell the user, line by line.

    Raises:
      ValueError: no run, nothing that `transformers` has a class for, or the target is in use.
    """
    _check_target(to)
    values = run_folder.read_json(source / "config.json") if source.is_dir() else None
    if values is None:
        seeds = sorted(file.parent.name for file in source.glob("seed*/config.json"))
        raise ValueError(
            f"{source} holds several runs ({', '.join(seeds[:5])}): export one of them, such as"
            f" {source}/{seeds[0]}"
            if seeds
            else f"no run in {str(source)!r}: expected a folder with config.json, as a training or"
            " a fine-tuning leaves it"
        )
    run_folder.check_ours(source, values)
    exported = _open_classifier(source, values) if "task" in values else _open_net(source)
    partial = to.absolute().with_name(f".{to.name}.{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    try:
        _write(exported, partial, dtype)
        if to.exists():
            shutil.rmtree(to)
        partial.replace(to)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    name = exported.architecture.name
    said = [f"{to}: {name}; load it with {name}.from_pretrained({str(to)!r})", *exported.remarks]
    if "mlm" not in exported.architecture.heads:  # somebody has to write the mask
        said.append("text that spells a special token is read as text, by AutoTokenizer too")
    return said


def _check_target(to: pathlib.Path) -> None:
    if not to.exists() or (to.is_dir() and (not any(to.iterdir()) or (to / MARK).is_file())):
        return
    inside = sorted(p.name for p in to.iterdir()) if to.is_dir() else ["it is a file"]
    raise ValueError(
        f"--to={to} is in use and no export of ours ({', '.join(inside[:6])}); choose another"
    )


# --- What the run is -----------------------------------------------------------------------------


def _open_net(path: pathlib.Path) -> Exported:
    opened = pretrained.load(path)
    family = maps.load(opened.config.system)
    result = run_folder.read_json(path / "result.json") or {}
    made = result.get("imported") or {}
    fresh = made.get("fresh") or []
    flat = {k: np.asarray(x) for k, x in convert.flatten(opened.params).items() if k not in fresh}
    fitting = [
        a
        for a in family.architectures
        if not a.classifies and {p for r in family.rows(a) for p in r.ours} == flat.keys()
    ]
    if not fitting:
        raise ValueError(
            f"no class of transformers holds a {opened.config.system} trained with"
            f" {opened.config.objective}: there are"
            f" {', '.join(a.name for a in family.architectures)}"
        )
    architecture = next((a for a in fitting if a.name == made.get("architecture")), fitting[0])
    config = run_folder.read_json(path / "config.json") or {}
    exported = Exported(path, config, family, architecture, flat, opened.tokenizer, opened.step)
    if fresh:
        exported.remarks.append("without prediction heads: the import that it is from had none")
    return exported


def _open_classifier(path: pathlib.Path, values: dict[str, Any]) -> Exported:
    family = maps.load(values["system"])
    architecture = next(a for a in family.architectures if a.classifies)
    _check_classifier(values, family, architecture)
    if not (path / "checkpoints").is_dir():
        raise ValueError(f"{path} keeps no parameters: {path}/checkpoints is missing")
    checkpoints = Checkpoints(path / "checkpoints", num_last=None)
    restored = checkpoints.restore_as_saved()
    checkpoints.close()
    if restored is None:
        raise ValueError(f"{path} keeps no parameters: the fine-tuning has not finished")
    saved = restored[0]
    flat = {
        k.removeprefix("body/"): np.asarray(x) for k, x in convert.flatten(saved["params"]).items()
    }
    count = flat["head/out/bias"].shape[-1]
    exported = Exported(
        path,
        values,
        family,
        architecture,
        flat,
        Tokenizer.load(path / "tokenizer"),
        int(saved["step"]),
        values["labels"] or [f"LABEL_{i}" for i in range(count)],
        values["regression"],
    )
    if values["head"]["kind"] == "single":
        _fold_bias(exported)
    return exported


def _check_classifier(values: dict[str, Any], family: Map, architecture: Architecture) -> None:
    """Refuses a classifier that the family's class cannot compute."""
    head, reasons = values["head"]["kind"], []
    if head != family.head_kind:
        layers = {"double": "two layers", "single": "one layer"}
        reasons.append(f"its head has {layers[head]}, the class's has {layers[family.head_kind]}")
    both = systems.load(values["system"]).ADAPTATION.both_orders
    if both and values.get("relation") == "similarity" and not _imported(values):
        reasons.append("it reads both orders of two texts and adds their vectors, the class one")
    if values.get("feature_layers"):
        reasons.append("its head reads several layers side by side, the class's the last one")
    if reasons:
        raise ValueError(
            f"{architecture.name} cannot hold this run: {'; '.join(reasons)}. transformers has no"
            f" other class for a {values['system']} that classifies"
        )


def _imported(values: dict[str, Any]) -> bool:
    """Whether a classifier reads each pair once, in the frame of its tokenizer, as imports do."""
    return values["task"] == TASK or values.get("frame") == "imported"


def _fold_bias(exported: Exported) -> None:
    """Moves a bias for which the class has no place into the last shift of the hidden states.

    Scores are (h + shift) W + b; a shift larger by d with d W = b, the shortest such d, gives the
    same.
    """
    flat, path = exported.flat, exported.family.last_shift
    bias = flat["head/out/bias"]
    if path is None or not bias.any():
        return
    kernel = flat["head/out/kernel"].astype(np.float64)
    if np.linalg.matrix_rank(kernel) < kernel.shape[1]:
        raise ValueError(
            f"{exported.architecture.name} has no bias on its scores, and this run's cannot go"
            " elsewhere: the columns of its kernel depend on each other"
        )
    moved = np.linalg.lstsq(kernel.T, bias.astype(np.float64), rcond=None)[0]
    shift = flat[path].copy()
    last = shift[-1] if shift.ndim == 2 else shift  # layers are stacked on axis 0
    last += moved.astype(shift.dtype)
    flat |= {path: shift, "head/out/bias": np.zeros_like(bias)}
    exported.remarks.append(
        f"{exported.architecture.name} has no bias on its scores: the run's is in the shift of the"
        " last norm, which leaves the scores as they were and moves the last hidden states"
    )


# --- The files -----------------------------------------------------------------------------------


def _write(exported: Exported, to: pathlib.Path, dtype: str) -> None:
    family, architecture, net = exported.family, exported.architecture, exported.config["net"]
    rows = family.rows(architecture)
    rows_of_table = len(exported.flat["embed/tokens/table"])
    sizes = Sizes(net["num_heads"], net["num_layers"], rows_of_table, rows_of_table)
    originals, sizes = _originals(exported, sizes)
    tensors = convert.to_theirs(rows, exported.flat, sizes) | originals
    if dtype != "float32":
        tensors = {name: _rounded(name, x, dtype) for name, x in tensors.items()}
        exported.remarks.append(f"its parameters are rounded to {dtype}")
    named = {convert.stored(name, family, architecture): x for name, x in tensors.items()}
    save_file(named, to / "model.safetensors", metadata={"format": "pt"})
    ids = dict(exported.tokenizer.special_ids)
    pad = None
    if architecture.classifies and "pad" not in ids:  # the class looks for the last token before it
        filler = next((role for role in ("eos", "unk") if role in ids), None)
        if filler is not None:
            pad, ids["pad"] = exported.tokenizer.token(ids[filler]), ids[filler]
    fields = net | {"ffn_width": net["ffn_width"] or 4 * net["width"]}
    fields |= {"vocab_size": sizes.vocab_rows, "num_segments": sizes.num_segments}
    config = settings.write(family, architecture, fields, ids, exported.labels, exported.regression)
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    adapted = systems.load(family.system).ADAPTATION
    frame = (adapted.begin, adapted.between, adapted.end)
    ours = architecture.classifies and not _imported(exported.config)
    texts.export(
        exported.path / "tokenizer",
        to,
        special_as_text="mlm" not in architecture.heads,
        inputs=family.inputs,
        max_len=net["max_len"],
        frame=frame if ours else None,
        pad=pad,
    )
    _describe(exported, to)


def _rounded(name: str, x: np.ndarray, dtype: str) -> np.ndarray:
    """A tensor in a smaller dtype.

    Raises:
      ValueError: it has values that the dtype cannot hold.
    """
    largest = float(np.abs(x).max(initial=0))
    if largest > float(np.finfo(dtype).max):
        raise ValueError(f"{name} has values up to {largest:.3g}, too large for --dtype={dtype}")
    return x.astype(dtype)


def _originals(exported: Exported, sizes: Sizes) -> tuple[convert.Flat, Sizes]:
    """Tensors that an import kept aside, if they still say what the parameters say."""
    file = exported.path / ORIGINALS
    if not file.is_file():
        return {}, sizes
    with safe_open(file, "numpy") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        stored = {name: int(value) for name, value in (opened.metadata() or {}).items()}
    rows = exported.family.rows(exported.architecture)
    if not convert.still_hold(rows, exported.flat, tensors, sizes):
        return {}, sizes
    return tensors, dataclasses.replace(sizes, **stored)


def _describe(exported: Exported, to: pathlib.Path) -> None:
    """Writes the model card, and the mark by which a later export knows the folder."""
    heads = exported.architecture.heads
    environment = run_folder.read_json(exported.path / "environment.json") or {}
    text = card.write(
        exported.path,
        system=exported.config["system"],
        architecture=exported.architecture.name,
        pipeline=next((p for head, p in card.PIPELINES.items() if head in heads), None),
        step=exported.step,
        remarks=exported.remarks,
    )
    (to / "README.md").write_text(text, encoding="utf-8")
    facts = {"system": exported.config["system"], "step": exported.step}
    facts["git_commit"] = environment.get("git_commit")
    (to / MARK).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
