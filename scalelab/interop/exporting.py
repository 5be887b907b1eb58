"""Exports: writes a folder in Hugging Face layout for a run folder."""

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from flax import traverse_util
from safetensors.numpy import save_file

from scalelab import systems
from scalelab.config.pretraining import Net
from scalelab.data.tokenizers import Tokenizer
from scalelab.finetuning import imported, kinds
from scalelab.finetuning.imported import TASK, ClassifierConfig
from scalelab.helpers.files import write_json, write_text
from scalelab.interop import config_json, convert, hub, maps, output_folder
from scalelab.interop import tokenizer as tokenizer_lib
from scalelab.interop.folder import WEIGHTS
from scalelab.interop.mapping import Architecture, Map
from scalelab.lab.show import card
from scalelab.records import json_files, run_files
from scalelab.records.run_files import RunRecord
from scalelab.training import pretrained

PADDING = "<|padding|>"  # a new token
BIAS_MOVED = (
    "{} has no bias on its scores, so the run's bias was moved into the last norm: scores are the"
    " same, the last hidden states are not"
)
PIPELINES = {  # by what a class predicts, or the kind of its head
    "masked": "fill-mask",
    "next": "text-generation",
    "classify": "text-classification",
    "tags": "token-classification",
    "choices": "multiple-choice",
    "spans": "question-answering",
}


@dataclasses.dataclass
class ExportedRun:
    """A run, and the class of `transformers` that it becomes.

    `flat` maps paths to parameters; `remarks` go to the user and into the model card.
    """

    run: RunRecord
    net: Net
    options: Mapping[str, Any]
    family: Map
    architecture: Architecture
    flat: convert.Flat
    tokenizer: Tokenizer
    step: int
    classifier: ClassifierConfig | None = None
    labels: list[str] | None = None
    scored: bool = True  # whether the run's scores are this model's
    remarks: list[str] = dataclasses.field(default_factory=list)

    @property
    def writes(self) -> bool:
        """Whether the model writes a text for a source."""
        return self.architecture.scores_tokens and systems.load(self.family.system).HAS_SOURCE

    @property
    def splits_special(self) -> bool:
        """Whether special tokens in a text are split as plain text.

        False for masked models and models with a source: users write masks and sentinels.
        """
        return self.architecture.predicts != "masked" and not self.writes


def run(
    source: pathlib.Path,
    to: pathlib.Path,
    dtype: str = "float32",
    part: str | None = None,
    step: int | None = None,
) -> list[str]:
    """Exports a run; returns lines for the user.

    Args:
      source: a run folder: a pre-training, or one seed of a fine-tuning.
      to: the folder to write; files of an earlier export there are replaced, others stay.
      dtype: "float32", "float16" or "bfloat16" of the stored tensors.
      part: which of the run's models, as its system names them (`systems.Part`); None: the first.
      step: which checkpoint of a pre-training; None: the newest.

    Raises:
      ValueError: there is no run, `transformers` has no class for it, or the folder is in use.
    """
    place = output_folder.check(to, "--to", replace=True)
    opened = run_files.read_run(source, metrics=False)
    exported = (_open_classifier if opened.task else _open_net)(opened, part, step)
    exported.scored = part is None and step is None
    with output_folder.filling(place) as partial:
        _write(exported, partial, dtype)
    name = exported.architecture.name
    lines = [f"{to}: {name}; load it with {name}.from_pretrained({str(to)!r})", *exported.remarks]
    if exported.splits_special:
        lines.append("note: special tokens inside a text are tokenized as plain text")
    return lines


def _open_net(run: RunRecord, part: str | None, step: int | None) -> ExportedRun:
    opened = pretrained.load(run.folder, step)
    family, net, options = (
        maps.load(opened.config.system), opened.config.model, opened.config.system_options
    )  # fmt: skip
    params = traverse_util.flatten_dict(opened.params, sep="/")
    flat = {name: np.asarray(x) for name, x in params.items()}
    parts = systems.parts(opened.system, net, options)
    if part is not None and part not in parts:
        has = f"the parts {', '.join(parts)}" if parts else "one model"
        raise ValueError(f"--part={part}: the run in {run.folder} has {has}")
    remarks = []
    if parts:
        name = part or next(iter(parts))
        net, options, flat = _cut(parts[name], net, options, flat)
        others = [f"; --part={other} writes its other model" for other in parts if other != name]
        remarks.append(f"this is the {name} of the run{''.join(others)}")
    if step is not None:
        after = f"these are the parameters after step {step:,}"
        remarks.append(f"{after}; the card has cost and scores of the whole run")
    for a in family.variants:
        if _paths(family, a) == flat.keys():
            return ExportedRun(
                run, net, options, family, a, flat, opened.tokenizer, opened.step, remarks=remarks
            )
    wrong = config_json.list_wrong_options(family, opened.config.system_options)
    reasons = "".join(f"{reason}; " for reason in wrong)
    raise ValueError(
        f"transformers has no class for a {opened.config.system} with {opened.config.objective};"
        f" {reasons}its classes are {', '.join(a.name for a in family.architectures)}"
    )


def _paths(family: Map, architecture: Architecture) -> set[str]:
    return {path for row in family.rows(architecture) for path in row.paths}


def _cut(
    part: systems.Part, net: Net, options: Mapping[str, object], flat: convert.Flat
) -> tuple[Net, Mapping[str, object], convert.Flat]:
    """Returns sizes, options and parameters of a part; a classifier's head stays."""
    cut = {}
    for path, x in flat.items():
        top, slash, rest = path.partition("/")
        name = part.paths.get(top, "head" if top == "head" else None)
        if name is not None:
            cut[name + slash + rest] = x
    return dataclasses.replace(net, **part.net), {**options, **part.options}, cut


def _open_classifier(run: RunRecord, part: str | None, step: int | None) -> ExportedRun:
    path = run.folder
    if step is not None or part is not None:
        flag = f"--part={part}" if step is None else f"--step={step}"
        raise ValueError(f"{flag}: the run in {path} is a classifier: one model, of one step")
    config = json_files.fill(ClassifierConfig, run.config, path / "config.json")
    family, kind = maps.load(config.system), config.head.kind
    architecture = next((a for a in family.architectures if a.kind == config.kind), None)
    if architecture is None:
        raise ValueError(
            f"transformers has no class for a {config.system} with a head of kind {config.kind};"
            f" its classes are {', '.join(a.name for a in family.architectures)}"
        )
    needed = family.head_kind(config.kind)
    both = systems.load(config.system).ADAPTATION.both_orders
    reasons = {
        f"its head is {kind!r}, the class has {needed!r}": kind != needed,
        "it reads a pair in both orders, the class in one order": both
        and config.relation == "similarity"
        and not _reads_as_imported(config),
        "its head reads several layers, the class only the last": config.feature_layers,
        "its head has a BiLSTM, the class has none": config.head.lstm_width,
        "its layers have adapters, the class has none": config.adapter_width,
        "it has a new encoder, the class has none": config.new_encoder_layers,
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
    count = imported.check_shapes(path, config, flat, tokenizer.vocab_size)
    labels = None
    if kinds.load(config.kind).NUM_OUTPUTS is None:
        labels = list(config.class_names or [f"LABEL_{i}" for i in range(count)])
    step = run.result.steps if run.result else 0
    net, options = config.model, config.pretraining().system_options
    for body in list(systems.parts(systems.load(config.system), net, options).values())[:1]:
        net, options, flat = _cut(body, net, options, flat)
    own = (a for a in family.variants if a.kind == config.kind)
    architecture = next((a for a in own if _paths(family, a) == flat.keys()), architecture)
    return ExportedRun(
        run, net, options, family, architecture, flat, tokenizer, step, config, labels
    )


def _reads_as_imported(config: ClassifierConfig) -> bool:
    """Returns True if a classifier reads pairs once, in its tokenizer's frame, as imports do."""
    return config.task == TASK or config.frame == "imported"


def _write(exported: ExportedRun, to: pathlib.Path, dtype: str) -> None:
    run, family, architecture = exported.run, exported.family, exported.architecture
    net, classifier, tokenizer = exported.net, exported.classifier, exported.tokenizer
    ids = tokenizer.special_ids
    roles = {role: tokenizer.token(i) for role, i in ids.items()}
    num_rows, frame = len(exported.flat[family.token_table]), None
    module = systems.load(family.system)
    if classifier and not _reads_as_imported(classifier):
        frame = (module.ADAPTATION.begin, module.ADAPTATION.between, module.ADAPTATION.end)
    if classifier and module.SEES == "left":
        roles["pad"] = pad = frame[0][0] if frame else _choose_padding(tokenizer)
        ids = ids | {"pad": tokenizer.with_added([pad]).token_id(pad)}
        num_rows = max(num_rows, ids["pad"] + 1)
    fields = dataclasses.asdict(net) | {"ffn_width": net.ffn_width or 4 * net.width}
    fields |= {"vocab_size": num_rows, "num_segments": 1} | exported.options
    regression = classifier is not None and classifier.regression
    config = config_json.make_config(family, architecture, fields, ids, exported.labels, regression)
    write_json(to / "config.json", config)
    config_json.check_loads(to)
    _write_tensors(exported, to, dtype, num_rows)
    settings = {"split_special_tokens": exported.splits_special, "model_max_length": net.max_len}
    tokenizer_lib.export(run.folder / "tokenizer", to, roles, family, frame, **settings)
    write_text(to / "README.md", _make_card(exported))
    files = sorted(p.name for p in to.iterdir())
    marker = {"git_commit": run.environment.git_commit, "files": files}
    write_json(to / output_folder.MARKER, {"system": family.system, "step": exported.step} | marker)


def _choose_padding(tokenizer: Tokenizer) -> str:
    """Returns a token that no text ends in: the class reads the last token that is not padding."""
    pad, last = tokenizer.special_ids.get("pad"), tokenizer.frame().end
    if pad is None or pad in (*last, tokenizer.special_ids.get("unk")):
        return PADDING
    return tokenizer.token(pad)


def _write_tensors(exported: ExportedRun, to: pathlib.Path, dtype: str, num_rows: int) -> None:
    """Writes the tensors; a new token gets a row of zeros, which nothing reads."""
    family, architecture, flat = exported.family, exported.architecture, dict(exported.flat)
    rows, remarks = family.rows(architecture), exported.remarks
    table = flat[family.token_table]
    flat[family.token_table] = np.pad(table, [(0, num_rows - len(table)), (0, 0)])
    if family.last_shift and any(row.transform == "without_bias" for row in rows):
        folded = convert.fold_bias(flat, family.last_shift)
        flat |= folded
        remarks += [BIAS_MOVED.format(architecture.name)] * bool(folded)
    tensors = convert.to_tensors(rows, flat)
    tensors = {name: _round(name, x, dtype) for name, x in tensors.items()}
    save_file(tensors, to / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(to / "config.json", to / WEIGHTS)  # safetensors gives the owner alone access
    if dtype != "float32":
        remarks.append(f"its parameters are rounded to {dtype}")


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
    pipeline = PIPELINES.get(architecture.kind or architecture.predicts or "")
    fills = architecture.kind is not None or exported.family.fills_masks
    # `transformers` has none for sources.
    pipeline = pipeline if fills and not exported.writes else None
    fields = hub.card_fields(exported.run, pipeline, exported.scored)
    return f"---\n{fields}\n---\n\n" + card.write(
        exported.run.folder,
        step=exported.step,
        loads=f"load it with `{architecture.name}.from_pretrained`",
        params=sum(x.size for x in exported.flat.values()),
        remarks=exported.remarks,
    )
