"""Evaluations of a pre-trained model without fine-tuning.

A `Evaluation` names the functions that read its data and measure a model. `suites` makes its
command line, `evaluate` writes its files, and a study runs it by name.

WORKDIR/seed0 has the files of a fine-tuning: result.json, predictions.tsv, config.json and
environment.json. So `python -m scalelab.eval.compare` compares two models item by item, and reports
of studies show evaluations like tasks. groups.tsv holds the table, groups.txt the printed text.
An evaluation that writes `Asked.partial` continues after an interruption.
"""

import argparse
import dataclasses
import hashlib
import importlib
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scalelab.config import cli
from scalelab.eval.names import EVALUATIONS
from scalelab.helpers import files
from scalelab.resources import host

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from scalelab.training.pretrained import Pretrained


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """The result of an evaluation: [n] items, each with scores of C alternatives."""

    texts: Sequence[Sequence[str]]  # one entry per text column of predictions.tsv: [n] texts
    gold: "np.ndarray"  # [n] int32, index of the right alternative; or [n] float32 scores
    outputs: "np.ndarray"  # [n, C] float32 scores, higher is better; -inf: no such alternative
    labels: Sequence[str] | None  # names of the C alternatives; None: gold and outputs are scores
    recipe: str  # label of the method, such as the rule that scored the sentences
    scores: Mapping[str, float]  # metric of scalelab.tasks.metrics -> score, the main one first
    table: "pd.DataFrame"  # groups.tsv
    printed: str  # the table for a terminal
    notes: tuple[str, ...] = ()  # about items that are left out
    files: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # more JSON, path -> content

    @property
    def shown(self) -> str:
        """The text for a terminal, groups.txt: the table and its notes."""
        return self.printed + "".join(f"* {note}\n" for note in self.notes)


@dataclasses.dataclass(frozen=True)
class Asked:
    """The request to measure a model."""

    # File for intermediate results; it and its folder may be absent. None: nothing is kept.
    partial: pathlib.Path | None
    data: pathlib.Path  # --data
    options: Mapping[str, Any]  # the evaluation's own flags, by name
    batch_tokens: int | None = None  # tokens of a batch with padding; None: chosen for the device
    tensor_parallel: int = 1  # devices that share the model
    peers: "Sequence[Pretrained]" = ()  # models of the study to compare; may lack parameters


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation without fine-tuning."""

    name: str  # the name of its program, and of the task in result.json
    # Reads the items from --data, in types that `json` can write, such as named tuples.
    read: Callable[[pathlib.Path], Sequence[Any]]
    measure: "Callable[[Pretrained, Sequence[Any], Asked], Measured]"
    data: str  # help text of --data
    folder: str  # folder of its data below a study's `evaluation_data`
    options: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    compares: bool = False  # whether `measure` reads `Asked.peers`
    scratch: bool = False  # whether studies also measure random weights, as a baseline
    source: bool = False  # whether it also measures models that read a source and a text


def load(name: str) -> Evaluation:
    """Returns the row of `suites`, or the evaluation of scalelab/eval/<name>.py.

    Raises:
      ValueError: there is no such evaluation.
    """
    from scalelab.eval import suites
    from scalelab.helpers.names import nearest

    if name in suites.SUITES:
        return suites.SUITES[name]
    if name not in EVALUATIONS:
        raise ValueError(f"unknown evaluation {name!r}: {nearest(name, EVALUATIONS)}")
    return importlib.import_module(f"scalelab.eval.{name}").EVALUATION


def read(evaluation: Evaluation, data: pathlib.Path) -> Sequence[Any]:
    """Reads the items of an evaluation.

    Raises:
      ValueError: `data` does not have such items.
    """
    try:
        return evaluation.read(data.expanduser())
    except (KeyError, IndexError, TypeError, AttributeError, OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{evaluation.name} cannot read {data} ({error!r}): python -m"
            f" scalelab.eval.{evaluation.name} --help describes the files"
        ) from None


def choose_options(evaluation: Evaluation, lines: Sequence[str]) -> dict[str, Any]:
    """Returns the options that a study's lines set for an evaluation.

    Args:
      evaluation: the evaluation.
      lines: such as "blimp.rule=pll_word"; those of others are left out.

    Raises:
      ValueError: the evaluation has no such option, or the value has another type.
    """
    from scalelab.config.fields import parse_fields
    from scalelab.helpers.names import check_names

    prefix = f"{evaluation.name}."
    own = parse_fields([line for line in lines if line.startswith(prefix)])
    found = {field.removeprefix(prefix): value for field, value in own.items()}
    check_names(found, evaluation.options, f"{evaluation.name} has no option")
    for option, value in found.items():
        default = evaluation.options[option][0]
        if default is not None and type(value) is not type(default):
            raise ValueError(
                f"{prefix}{option}={value}: expected {type(default).__name__}, such as {default!r}"
            )
    check_options(evaluation, found)
    return found


def check_options(evaluation: Evaluation, options: Mapping[str, Any]) -> None:
    """Raises ValueError for a negative number, and for 0 where the default is more."""
    for name, (default, _) in evaluation.options.items():
        value = options.get(name, default)
        if isinstance(default, int) and value < (least := min(1, default)):
            raise ValueError(f"{evaluation.name}: --{name}={value}: expected {least} or more")


def run(evaluation: Evaluation, given: argparse.Namespace) -> None:
    """Runs the evaluation of the command line, and prints its table."""
    options = {name: getattr(given, name) for name in evaluation.options}
    more = given.batch_tokens, given.tensor_parallel
    folders = given.run, given.data, given.workdir
    print(evaluate(evaluation, *folders, options, *more, given.step, random=given.random))


def add_flags(made: cli.Parser, evaluation: Evaluation) -> None:
    """Adds the flags of an evaluation."""
    add = made.add_argument
    add("--run", required=True, type=pathlib.Path, help="run folder of the model")
    add("--data", required=True, type=pathlib.Path, help=evaluation.data)
    add("--workdir", required=True, type=pathlib.Path, help="folder for the results")
    for name, (default, meaning) in evaluation.options.items():
        if isinstance(default, bool):
            add(f"--{name}", action="store_true", help=meaning)
            continue
        kind = str if default is None else type(default)
        add(f"--{name}", default=default, help=meaning, type=kind)
    add("--step", type=cli.positive, metavar="N",
        help="measure the checkpoint of this training step; default: the newest")  # fmt: skip
    add("--random", action="store_true", help="measure the same model with random weights")
    add("--batch_tokens", type=cli.positive, metavar="N",
        help="tokens in a batch, padding included; default: chosen for the device")  # fmt: skip
    add("--tensor_parallel", type=cli.positive, default=1, metavar="N",
        help="devices that share the model; default: 1")  # fmt: skip


def evaluate(
    evaluation: Evaluation,
    run: pathlib.Path,
    data: pathlib.Path,
    workdir: pathlib.Path,
    options: Mapping[str, Any] | None = None,
    batch_tokens: int | None = None,
    tensor_parallel: int = 1,
    step: int | None = None,
    *,
    random: bool = False,
    peers: "Sequence[Pretrained]" = (),
) -> str:
    """Measures a run and writes its files. A finished evaluation is read, not repeated.

    Args:
      evaluation: the evaluation.
      run: run folder of the model.
      data: folder or file of the items.
      workdir: folder for the results.
      options: the evaluation's own flags, by name; None: the defaults.
      batch_tokens: tokens in a batch, padding included; None: chosen for the device.
      tensor_parallel: devices that share the model.
      step: training step of the checkpoint; None: the newest.
      random: whether to replace the run's weights by random ones.
      peers: all models of the study, if the evaluation reads them (`compares`).

    Returns:
      The table, for a terminal.

    Raises:
      ValueError: run, data or options do not suit, or `workdir` has another evaluation.
    """
    from scalelab.eval import placement
    from scalelab.records import run_files
    from scalelab.training import pretrained

    defaults = {name: default for name, (default, _) in evaluation.options.items()}
    options = defaults | dict(options or {})
    check_options(evaluation, options)
    items = read(evaluation, data)
    opened = pretrained.load(run, step)
    opened.check_alone(source=evaluation.source)
    if random:
        opened = placement.randomize(opened)
    config = {
        "task": evaluation.name,
        "seed": 0,
        "system": opened.config.system,
        "system_options": dict(opened.config.system_options),
        "model": dataclasses.asdict(opened.config.model),
        "init": pretrained.tree_digest(opened.params),
        "texts": hashlib.sha256(json.dumps(items).encode()).hexdigest(),
        **options,
    }
    nets = {_reading_digest(net): net for net in (*peers, opened)}
    config |= {"peers": sorted(nets)} if peers else {}
    config |= {"step": step} if step else {}
    folder, shown = workdir / "seed0", f"{evaluation.name} of {opened.path}"
    shown += f", step {step}" * (step is not None) + ", random weights" * random
    if (folder / "config.json").exists():
        known = run_files.read_config(folder)
        known = defaults | known  # an older version had fewer options
        if differs := [key for key, value in config.items() if known.get(key) != value]:
            raise ValueError(
                f"--workdir={workdir} holds another evaluation ({differs[0]} differs): choose"
                " another folder, or delete this one"
            )
        if (folder / "result.json").exists():
            return f"{shown}, finished before\n{(folder / 'groups.txt').read_text()}"
    host.configure_jax(opened.config.machine.compile_cache_dir, opened.config.model.dtype)
    digest = hashlib.sha256(json.dumps(config).encode()).hexdigest()[:12]
    partial = folder / f"partial-{digest}.npz"
    others = [net for net in nets.values() if net is not opened]
    asked = Asked(partial, data, options, batch_tokens, tensor_parallel, others)
    print(f"{shown}: compiling, then measuring", file=sys.stderr, flush=True)
    made = evaluation.measure(opened, items, asked)
    made = dataclasses.replace(made, notes=(*made.notes, *opened.reading_notes))
    _write(folder, evaluation.name, opened, config, made, random=random)
    partial.unlink(missing_ok=True)
    return f"{shown}\n{made.shown}wrote {folder}"


def _reading_digest(net: "Pretrained") -> str:
    """Returns a digest of a model's tokenizer, prediction and length; they determine its items."""
    reads = [net.tokenizer.digest, net.predicts, max(phase.max_len for phase in net.config.phases)]
    return hashlib.sha256(json.dumps(reads).encode()).hexdigest()[:12]


def _write(
    folder: pathlib.Path,
    name: str,
    opened: "Pretrained",
    config: Mapping[str, Any],
    made: Measured,
    *,
    random: bool,
) -> None:
    """Writes config, tables, predictions, environment and, last, result.json."""
    from scalelab.records import predictions, run_files, run_folder

    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / "config.json", config)
    made.table.to_csv(folder / "groups.tsv", sep="\t", index=False, float_format="%.6f")
    files.write_text(folder / "groups.txt", made.shown)
    for path, content in made.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / path, content)
    lines = predictions.lines(made.texts, made.outputs, made.labels, made.gold)
    files.write_text(folder / "predictions.tsv", "".join(lines))
    files.write_json(folder / "environment.json", run_folder.describe_environment())
    net = opened.config.model
    result = run_files.TaskResult(
        system=config["system"],
        shape=net.shape,
        n_model=opened.n_model,
        seed=0,
        pretrain_seed=opened.config.seed,
        task=name,
        recipe=made.recipe,
        init="none" if random else str(opened.path),
        init_digest=config["init"],
        eval={"dev": dict(made.scores)},
        data={"dev": config["texts"]},
        remarks=made.notes,
    )
    run_files.write_result(folder, result)
