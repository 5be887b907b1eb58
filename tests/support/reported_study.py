"""An invented study: its file and run folders as `scalelab.study` leaves them, for tests."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import study_folders
import task_folders

from scalelab.lab.show import notes, score_tables
from scalelab.lab.show.score_tables import TableRequest
from scalelab.lab.tables import Table
from scalelab.thesis import comparison

TASKS = ("mnli", "qqp", "qnli", "sst2")
SHAPES = ((2, 16, 2), (2, 32, 2))
DEPARTURES = {
    "bert": [],
    "roberta": [{"field": "tokenizer.kind", "value": "bytebpe", "source": "Liu et al. 2019, 4.4"}],
    "gpt2": [
        {"field": "tokenizer.kind", "value": "bytebpe", "source": "Radford et al. 2019, 2.2"},
        {"field": "optim.learning_rate", "value": 2.5e-4, "source": "Radford et al. 2018, 4.1"},
        {"field": "objective", "value": "clm", "source": "Radford et al. 2019, 2.1"},
    ],
}
EVERY, STEPS, LONG_STEPS = 100, 900, 1000  # the long phase begins after STEPS
COMMIT = "0123456789abcdef0123456789abcdef01234567"
COMMAND = "python -m scalelab.study run --config=configs/studies/invented.py --workdir=work"


def config_of(system: str, shape: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """The part of a resolved config that reports and cards read."""
    net = dict(zip(("num_heads", "width", "num_layers"), shape, strict=True))
    return {
        "system": system,
        "seed": seed,
        "model": net | {"max_len": 64},
        "tokenizer": {"kind": "wordpiece" if system == "bert" else "bytebpe", "vocab_size": 8000},
        "data": {"corpus": "invented", "format": "doc_sentences"},
        "short": {"max_len": 32, "batch_size": 64},
        "long": {"max_len": 64, "batch_size": 16},
        "optim": {"total_epochs": None, "total_steps": LONG_STEPS},
    }


ADAPTATION = {"recipe": "thesis", "epochs": 3.0, "dropout_rate": 0.1,
              "head.kind": "double", "optim.learning_rate": 2e-5}  # fmt: skip


def finetune_config(task: str, config: dict[str, Any], seed: int, weights: str) -> dict[str, Any]:
    """The part of a fine-tuning's config.json that the contract reads, and the machine's."""
    return {
        "task": task, "seed": seed, "system": config["system"], "init": weights,
        "mnli_first": False, "model": config["model"] | {"dropout_rate": 0.1},
        "data": {"train": f"{task} train", "dev": f"{task} dev"},
        "recipe": "thesis", "epochs": 3.0, "dropout_rate": 0.1, "head": {"kind": "double"},
        "optim": {"learning_rate": 2e-5}, "machine": {"init": "anywhere"},
    }  # fmt: skip


def name_of(system: str, shape: tuple[int, int, int], variant: str, seed: int) -> str:
    middle = "" if variant == "default" else f"-{variant}"
    return f"{system}-{'x'.join(map(str, shape))}{middle}-seed{seed}"


def clocks(shape: tuple[int, int, int], step: int) -> dict[str, float]:
    """Readings at a step: short sequences have 28 real tokens, long ones 60."""
    tokens = 28 * 64 * min(step, STEPS) + 60 * 16 * max(0, step - STEPS)
    n_model = 12 * shape[2] * shape[1] ** 2
    flops = 6.0 * n_model * tokens
    return {"step": step, "tokens": tokens, "flops": flops, "seconds": 0.01 * step + flops / 1e9}


def loss_of(system: str, shape: tuple[int, int, int], seed: int, step: int) -> float:
    n_model = 12 * shape[2] * shape[1] ** 2
    start = {"bert": 9.7, "gpt2": 9.0, "roberta": 9.1}[system] - 0.12 * math.log(n_model)
    of_seed = 0.02 * seed * (1 + 1e-5 * shape[1])  # nearly the same for all shapes
    return start - 0.45 * math.log(step + 40) + of_seed + 0.01 * math.sin(step)


def write_pretraining(
    folder: Path, system: str, shape: tuple[int, int, int], seed: int, *, until: int = LONG_STEPS
) -> None:
    """Writes a run folder; without result.json unless it went to its end."""
    lines = []
    for step in range(EVERY, until + 1, EVERY):
        loss = loss_of(system, shape, seed, step)
        length = 32 if step <= STEPS else 64
        now = clocks(shape, step)
        now["seconds"] *= 1 + 0.01 * seed  # seeds differ in time too, as they do
        lines.append(now | {"train/loss": loss})
        lines.append(
            now | {"eval/loss": loss + 0.1, "eval/bits_per_byte": loss / 3, "eval/max_len": length}
        )
    environment = {"command": COMMAND, "git_commit": COMMIT, "git_dirty": False, "devices": ["cpu"]}
    environment |= {"numerics": 1, "earlier_starts": []}
    config = config_of(system, shape, seed)
    task_folders.write_files(folder, lines, environment=environment, config=config)
    if until < LONG_STEPS:
        return
    now = clocks(shape, until)
    now["seconds"] *= 1 + 0.01 * seed
    reached = {
        str(length): {"loss": loss + 0.1, "bits_per_byte": loss / 3, "step": step}
        for length, step in ((32, STEPS), (64, until))
        for loss in [loss_of(system, shape, seed, step)]
    }
    steps = now.pop("step")
    result = task_folders.result_of(config, steps, now, reached, params=10_000)
    task_folders.write_files(folder, result=result)


def write_finetunings(
    folder: Path, system: str, shape: tuple[int, int, int], seed: int, tasks, num_seeds: int
) -> None:
    """Fine-tunings whose errors fall with width and depth, BERT's the most."""
    better = int(math.log2(shape[1] * shape[2])) * (2 if system == "bert" else 1)
    for task in tasks:
        splits = ("matched", "mismatched") if task == "mnli" else ("dev",)
        for k in range(num_seeds):
            wrong = dict.fromkeys(splits, max(1, 28 - better + 2 * seed + k))
            weights = folder.parent.name
            config = finetune_config(task, config_of(system, shape, seed), k, weights)
            task_folders.write_run(
                folder / task, task, k, wrong, system=system, init_digest=weights,
                pretrain_seed=seed, data=config["data"],
                settings=config["optim"] | {"epochs": config["epochs"], "head.kind": "double"},
            )  # fmt: skip
            environment = {"numerics": 1}
            run = folder / task / f"seed{k}"
            task_folders.write_files(run, config=config, environment=environment)


def write(
    workdir: Path, *, systems=("bert", "gpt2"), shapes=SHAPES, variants=("default",),
    seeds: int = 2, finetune_seeds: int = 2, tasks=TASKS, unfinished: tuple[str, ...] = (),
    **facts: Any,
) -> Path:  # fmt: skip
    """Writes studies/invented.json and runs/ of a study of systems x shapes x variants x seeds.

    The runs named in `unfinished` were stopped half-way; `facts` are of the study's file, on top.
    """
    runs = []
    for system, shape, variant, seed in itertools.product(systems, shapes, variants, range(seeds)):
        name = name_of(system, shape, variant, seed)
        runs.append({
            "name": name, "stage": "main", "system": system, "variant": variant,
            "shape": dict(zip("AHL", shape, strict=True)), "seed": seed,
            "config": config_of(system, shape, seed),
        })  # fmt: skip
        folder = workdir / "runs" / name
        if name in unfinished:
            write_pretraining(folder, system, shape, seed, until=LONG_STEPS // 2)
            continue
        write_pretraining(folder, system, shape, seed)
        write_finetunings(folder / "tasks", system, shape, seed, tasks, finetune_seeds)
    study = study_folders.FACTS | {
        "title": "Two objectives at two widths",
        "question": "Does width help one objective more than the other?",
        "protocol": "7.5.1",
        "tables": ["data", "large", "grid", "cost"],
        "figures": ["score_by_size", "loss_by_time"],
        "tasks": list(tasks),
        "finetune_seeds": finetune_seeds,
        "finetune": {"fields": ["epochs=3.0"], "data": None},
        "adaptation": {task: ADAPTATION for task in tasks},
        "chosen": [],
        "seeds": seeds,
        "departures": {s: DEPARTURES.get(s, []) for s in systems},
        "variants": {v: [] if v == "default" else ["optim.total_steps=x0.5"] for v in variants},
        "command": COMMAND,
        "runs": runs,
    }
    task_folders.write_files(workdir / "studies", invented=study | facts)
    return workdir


def build_tables(study, scores, *, published=None, footnotes=()) -> list[Table]:
    """The tables of a study as its report makes them."""
    return build_all(study, scores, published=published, footnotes=footnotes)[0]


def build_notes(study, scores, *, published=None, footnotes=()) -> list[str]:
    """The notes on these tables."""
    return build_all(study, scores, published=published, footnotes=footnotes)[1]


def build_all(study, scores, *, published, footnotes) -> tuple[list[Table], list[str]]:
    departing = comparison.departures(study, footnotes)
    request = TableRequest(study, scores, None if departing else published, departing, footnotes)
    made = score_tables.build(request, score_tables.TABLES | comparison.TABLES)
    return made, notes.describe(request, made)


def edit_runs(workdir: Path, edit) -> None:
    """Changes what the study plans of each run, and the configs that the runs were trained with."""
    (path,) = (workdir / "studies").glob("*.json")
    facts = json.loads(path.read_text())
    for run in facts["runs"]:
        edit(run)
        config = workdir / "runs" / run["name"] / "config.json"
        if config.exists():
            config.write_text(json.dumps(run["config"]))
    path.write_text(json.dumps(facts))
