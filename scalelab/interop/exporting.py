"""A run folder becomes a folder in Hugging Face layout."""

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
from scalelab.interop import card, classifiers, convert, maps, settings, target, texts
from scalelab.interop import source as source_lib
from scalelab.interop.rows import Architecture, Map
from scalelab.interop.source import Source
from scalelab.interop.transforms import Sizes
from scalelab.runs import pretrained, run_folder

Frame = tuple[tuple[str, ...], ...]  # begin, between, end
PADDING = ("<pad>", "<|padding|>")  # a new piece, where none of the tokenizer's will do
MOST_ROWS = 10_000  # of a padded table, for each that the tokenizer has an id for


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


def run(source: pathlib.Path, to: pathlib.Path, dtype: str | None = None) -> list[str]:
    """Exports a run.

    Args:
      source: a run folder, of a pre-training or of one seed of a fine-tuning.
      to: where to; made if absent; of an earlier export, what it wrote is replaced, nothing else.
      dtype: of the stored tensors: "float32", or one to which they are rounded, "float16" or
        "bfloat16"; None: as those that the run was imported from had it, otherwise float32.

    Returns:
      What to tell the user, line by line.

    Raises:
      ValueError: no run, nothing that `transformers` has a class for, or the target is in use.
    """
    place = target.check(to, "--to", again=True)
    values = run_folder.read_json(source / "config.json") if source.is_dir() else None
    if not isinstance(values, dict):
        below = sorted(p.parent.name for p in source.glob("*/config.json"))
        raise ValueError(
            f"{source} holds several runs ({', '.join(below[:8])}): export one of them, such as"
            f" {source}/{below[0]}"
            if below
            else f"no run in {str(source)!r}: expected a folder with config.json, as a training or"
            " a fine-tuning leaves it"
        )
    run_folder.check_ours(source, values)
    exported = _open_classifier(source, values) if "task" in values else _open_net(source)
    with target.filling(place, target.files_of_ours(place) or ()) as partial:
        _write(exported, partial, dtype)
    name = exported.architecture.name
    said = [f"{to}: {name}; load it with {name}.from_pretrained({str(to)!r})", *exported.remarks]
    if "mlm" not in exported.architecture.heads:  # somebody has to write the mask
        said.append("text that spells a special token is read as text, by AutoTokenizer too")
    return said


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
        for a in family.variants
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
    imported.check_config(path, values)
    family = maps.load(values["system"])
    architecture = next(a for a in family.architectures if a.classifies)
    _check_classifier(values, family, architecture)
    flat, step = classifiers.restore(path)
    flat.pop("output_embed/table", None)  # trained beside the task; the class scores no tokens
    tokenizer = texts.load(path / "tokenizer")
    count = imported.check_shapes(path, values, flat, tokenizer.vocab_size)
    return Exported(
        path,
        values,
        family,
        architecture,
        flat,
        tokenizer,
        step,
        imported.class_names(values) or [f"LABEL_{i}" for i in range(count)],
        values["regression"],
    )


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


# --- The files -----------------------------------------------------------------------------------


def _write(exported: Exported, to: pathlib.Path, dtype: str | None) -> None:
    net, ids = exported.config["net"], exported.tokenizer.special_ids
    count = len(exported.flat["embed/tokens/table"])
    sizes = Sizes(net["num_heads"], net["num_layers"], count, count)
    source = source_lib.load(exported.path) or Source({}, {}, {}, {})
    sizes = dataclasses.replace(sizes, **source.sizes)
    if not count <= sizes.vocab_rows <= MOST_ROWS * count:
        raise ValueError(
            f"{exported.path}/{source_lib.FACTS} is damaged: it tells of {sizes.vocab_rows:,} rows"
            f" of a table that has {count:,}; import anew"
        )
    frame = pad = None
    if exported.architecture.classifies and not _imported(exported.config):
        adapted = systems.load(exported.family.system).ADAPTATION
        frame = (adapted.begin, adapted.between, adapted.end)
    if exported.architecture.classifies and exported.config["task"] != TASK:
        pad = _filler(exported, frame)
    if pad is not None:
        ids = ids | {"pad": exported.tokenizer.with_added([pad]).token_id(pad)}
        # A piece of its own has a row of zeros, which nothing reads.
        sizes = dataclasses.replace(sizes, vocab_rows=max(sizes.vocab_rows, ids["pad"] + 1))
    _write_tensors(exported, to, dtype, sizes, source)
    fields = net | {"ffn_width": net["ffn_width"] or 4 * net["width"]}
    fields |= {"vocab_size": sizes.vocab_rows, "num_segments": sizes.num_segments}
    config = settings.write(
        exported.family,
        exported.architecture,
        fields,
        ids,
        exported.labels,
        exported.regression,
    )
    config |= source.fields
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    texts.export(
        exported.path / "tokenizer",
        to,
        special_as_text="mlm" not in exported.architecture.heads,
        inputs=exported.family.inputs,
        max_len=net["max_len"],
        frame=frame,
        pad=pad,
    )
    _describe(exported, to)


def _filler(exported: Exported, frame: Frame | None) -> str | None:
    """What pads batches of a classifier that was trained here; None: what its tokenizer has.

    A GPT's class reads the last token that is not this one: it must be none that ends a text, in
    which the net was trained to read. So it is not what an import's config.json may have had.

    Args:
      exported: the run.
      frame: texts of the tokens around its texts; None: its tokenizer's own.
    """
    tokenizer = exported.tokenizer
    roles = {role: tokenizer.token(i) for role, i in tokenizer.special_ids.items()}
    if "pad" in roles and not systems.load(exported.family.system).CAUSAL:
        return None
    if frame is None:
        own = tokenizer.frame()
        frame = tuple(tuple(map(tokenizer.token, ids)) for ids in (own.begin, own.between, own.end))
    begin, between, end = frame
    # Without a token that ends every text, one that it does not know may.
    last = end[-1] if end else roles.get("unk") if texts.has_unknown(exported.path) else None
    special = [roles[role] for role in ("eos", "bos") if role in roles]
    found = [*([roles["pad"]] if "pad" in roles else []), *begin, *between, *special, *PADDING]
    return next(text for text in found if text != last)


def _write_tensors(
    exported: Exported, to: pathlib.Path, dtype: str | None, sizes: Sizes, source: Source
) -> None:
    family, architecture, flat = exported.family, exported.architecture, exported.flat
    rows = family.rows(architecture)
    folded: convert.Flat = {}
    if architecture.classifies and family.head_kind == "single":
        folded = classifiers.fold_bias(flat, family, architecture.name)
    tensors = convert.to_theirs(rows, flat | folded, sizes)
    if convert.still_hold(rows, flat, source.tensors, sizes):
        tensors |= source.tensors
    dtypes = source.dtypes if dtype is None else dict.fromkeys(tensors, dtype)
    tensors = {name: _rounded(name, x, dtypes.get(name, "float32")) for name, x in tensors.items()}
    named = {convert.stored(name, family, architecture): x for name, x in tensors.items()}
    save_file(named, to / classifiers.MODEL, metadata={"format": "pt"})
    whole = all(x.dtype == np.float32 for x in tensors.values())
    if not whole:
        found = " and ".join(sorted({x.dtype.name for x in tensors.values()}))
        as_before = "its parameters are, as where they were imported from,"
        how = as_before if dtype is None else "its parameters are rounded to"
        exported.remarks.append(f"{how} {found}")
    if folded:
        exported.remarks.append(
            f"{architecture.name} has no bias on its scores: the run's is in the shift of the last"
            " norm, which leaves the scores as they were and moves the last hidden states"
        )
    if folded and whole:
        classifiers.keep_unfolded({path: flat[path] for path in folded}, to)
        exported.remarks.append(f"{classifiers.EXTRA} has both as they were, for an import")


def _rounded(name: str, x: np.ndarray, dtype: str) -> np.ndarray:
    """A tensor in another dtype.

    Raises:
      ValueError: it has values that the dtype cannot hold.
    """
    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype))
    largest = float(np.max(np.abs(x), where=np.isfinite(x), initial=0))
    if largest > float(ml_dtypes.finfo(wanted).max):
        raise ValueError(f"{name} has values up to {largest:.3g}, too large for --dtype={dtype}")
    return x.astype(wanted, copy=False)


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
        params=sum(x.size for x in exported.flat.values()),
        remarks=exported.remarks,
    )
    (to / "README.md").write_text(text, encoding="utf-8")
    facts = {"system": exported.config["system"], "step": exported.step}
    facts["git_commit"] = environment.get("git_commit")
    facts["files"] = sorted(p.name for p in to.iterdir())
    (to / target.MARK).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
