"""Golden runs of fine-tuning: every step's numbers, the predictions and the scores.

They are written anew by

  python -m pytest tests/finetuning/test_finetune_golden.py --update-golden
"""

import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import in_process
import numpy as np
import pytest
import tiny

from scalelab import finetune
from scalelab.config.finetuning import override
from scalelab.eval import glue
from scalelab.finetuning import warm_start
from scalelab.finetuning.plan import Request
from scalelab.tasks.task import load_task

pytestmark = pytest.mark.ci

GOLDEN = tiny.ROOT / "tests/finetuning/golden.json"
WORDS = "at by do go if in me no or up".split()
SIZES = {"train": 21, "dev": 9}  # batches of 8, 8 and 5; of 8 and 1
COUNTS = {"step", "steps", "tokens", "flops", "params"}  # equal on every machine
SCORES = ("status", "steps", "tokens", "flops", "params", "eval", "best", "stopped", "train_loss")


def texts(rng: np.random.Generator, n: int) -> list[list[str]]:
    """Every third text is long, so that batches have several lengths."""
    return [rng.choice(WORDS, 7 if i % 3 == 0 else 3).tolist() for i in range(n)]


def tag(word: str) -> str:
    return ("O", "B-PER", "B-LOC")[WORDS.index(word) % 3]


def asked(words: Sequence[str]) -> dict[str, Any]:
    """A paragraph whose answer is its last word but one."""
    answer, context = words[-2], " ".join(words)
    start = len(" ".join(words[:-2])) + 1
    found = [{"text": answer, "answer_start": start}]
    return {"context": context, "qas": [{"id": context, "question": "no", "answers": found}]}


def write_data(folder: pathlib.Path) -> pathlib.Path:
    """Writes invented rows of each task; the word "go" in the first text makes the label."""
    files: dict[str, str] = {}
    for seed, (split, n) in enumerate(SIZES.items()):
        rng = np.random.default_rng(seed)
        firsts, seconds = texts(rng, n), texts(rng, n)
        hits = [words.count("go") for words in firsts]
        pairs = [f"{' '.join(a)}\t{' '.join(b)}" for a, b in zip(firsts, seconds, strict=True)]

        def table(header: str, labels: Sequence[Any], pairs: Any = pairs) -> str:
            rows = (f"{pair}\t{label}\n" for pair, label in zip(pairs, labels, strict=True))
            return f"{header}\n{''.join(rows)}"

        named = ["entailment" if hit else "not_entailment" for hit in hits]
        files[f"RTE/{split}.tsv"] = table("sentence1\tsentence2\tlabel", named)
        files[f"STS-B/{split}.tsv"] = table("sentence1\tsentence2\tscore", hits)
        ones = [int(hit > 0) for hit in hits]
        files[f"MRPC/{split}.tsv"] = table("#1 String\t#2 String\tQuality", ones)
        files[f"panx/{split}-en.tsv"] = "\n".join(
            "".join(f"{word}\t{tag(word)}\n" for word in words) for words in firsts
        )
        articles = [{"title": str(i), "paragraphs": [asked(w)]} for i, w in enumerate(firsts)]
        files[f"squad/{split}-v1.1.json"] = json.dumps({"data": articles})
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
    return write_data(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def runs(wikitext, cache_dir, tmp_path_factory) -> Callable[[str], str]:
    """Models whose outputs differ from text to text, which those of `pretrained_runs` hardly do."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def write(system: str) -> str:
        return str(tiny.write_run(folder / system, system, wikitext, cache_dir, spread=0.5))

    return write


def fields(cache_dir) -> dict[str, Any]:
    return {
        "epochs": 2.0, "batch_size": 8, "max_len": 32, "lm_weight": 0.0,
        "optim.learning_rate": 2e-2, "optim.warmup_rate": 0.2,
        "machine.cache_dir": str(cache_dir), "machine.compile_cache_dir": None,
        "machine.tracker": None, "machine.eval_batch_size": 8, "machine.log_every_steps": 1,
    }  # fmt: skip


def left(folder: pathlib.Path) -> dict[str, Any]:
    """What a seed leaves, without times and texts."""
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    result = json.loads((folder / "result.json").read_text())
    made: dict[str, Any] = {"metrics": lines, "result": {k: result[k] for k in SCORES}}
    for path in sorted(folder.glob("predictions*.tsv")):
        header, *rows = (line.split("\t") for line in path.read_text().splitlines())
        places = [i for i, name in enumerate(header) if not name.startswith("text")]
        made[path.name] = [
            [header[i] for i in places],
            *([number(row[i]) for i in places] for row in rows),
        ]
    return made


def number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def assert_close(ours: Any, theirs: Any, name: str = "") -> None:
    """Counts and texts are equal; numbers are as close as those of the systems' golden files."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), name
        for key, value in theirs.items():
            if key in COUNTS:
                assert ours[key] == value, f"{name}/{key}"
            else:
                assert_close(ours[key], value, f"{name}/{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), name
        for i, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_close(*pair, f"{name}/{i}")
    elif isinstance(theirs, float):
        # A correlation is a difference, and may be near 0.
        least = 1e-5 if name.endswith(("pearson", "spearman")) else 0.0
        assert ours == pytest.approx(theirs, rel=1e-5, abs=least), name
    else:
        assert ours == theirs, name


def compare(case: str, folders: Sequence[pathlib.Path], root: pathlib.Path, update: bool) -> None:
    ours = {str(folder.relative_to(root)): left(folder) for folder in folders}
    if update:
        old = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        cases = sorted((old | {case: ours}).items())
        lines = [f" {json.dumps(name)}: {json.dumps(made)}" for name, made in cases]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert_close(ours, json.loads(GOLDEN.read_text())[case], case)


@pytest.mark.parametrize(("system", "name", "own", "seeds"), [
    ("bert", "rte", {"optim.layer_decay": 0.7}, (0,)),
    ("gpt", "mrpc", {"lm_weight": 0.5}, (0,)),
    ("bert", "stsb", {"patience": 1, "epochs": 6.0}, (0,)),
    ("roberta", "ner", {"optim.learning_rate": 6e-2}, (0,)),
    ("bert", "ner", {"feature_layers": 1, "head.lstm_width": 4}, (0,)),
    ("bert", "squad", {}, (0,)),
    ("bert", "rte", {}, (0, 1)),
])  # fmt: skip
def test_a_task(system, name, own, seeds, data, runs, cache_dir, tmp_path, update_golden) -> None:
    start = warm_start.open_start(runs(system))
    values = tiny.config_module("finetune").get_config().to_dict()
    given = fields(cache_dir) | own
    asked = {"seeds": seeds, "data": str(data), "fixed": tuple(given)}
    finetune.fine_tune(load_task(name), Request(start, override(values, given), **asked), tmp_path)
    case = "-".join([system, name, *own, *["seeds"][: len(seeds) - 1]])
    compare(case, [tmp_path / f"seed{k}" for k in seeds], tmp_path, update_golden)


def test_tasks_at_once(monkeypatch, data, runs, cache_dir, tmp_path, update_golden) -> None:
    given = fields(cache_dir) | {"sharing": "hard"}
    arguments = [
        f"--init={runs('bert')}", f"--data={data}", f"--workdir={tmp_path}",
        "--tasks=rte,stsb", "--baseline=none", *(f"--config.{k}={v}" for k, v in given.items()),
    ]  # fmt: skip
    in_process.run(glue, arguments)
    folders = [tmp_path / name / "seed0" for name in ("rte", "stsb")]
    compare("bert-sharing", folders, tmp_path, update_golden)
