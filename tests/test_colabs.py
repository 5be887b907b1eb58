"""The notebooks about studies run from top to bottom, on studies small enough for a test."""

import os
import pathlib
import re
import subprocess
import sys

import glue_folder
import nbclient
import nbformat
import pytest
import tiny

pytestmark = [
    pytest.mark.ci,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def execute(name: str, monkeypatch: pytest.MonkeyPatch, **values: str) -> nbformat.NotebookNode:
    """Runs a notebook of colabs/ with values for what it reads from the environment."""
    values |= {
        "SCALELAB": str(tiny.ROOT),
        "JAX_PLATFORMS": "cpu",
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tiny.ROOT),
        "TQDM_DISABLE": "1",
    }
    for key, value in values.items():
        monkeypatch.setenv(key, value)
    notebook = nbformat.read(tiny.ROOT / f"colabs/{name}.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
    return notebook


def shown(notebook: nbformat.NotebookNode, kind: str) -> str:
    """Everything of a kind that the cells show, such as text/markdown."""
    return "\n".join(
        part["data"][kind]
        for cell in notebook.cells
        for part in cell.get("outputs", [])
        if kind in part.get("data", {})
    )


def test_quickstart(monkeypatch, tmp_path, cache_dir) -> None:
    """The study of `make quickstart` itself, its three systems and its probes, smaller."""
    corpus = tmp_path / "world"
    world = ["--kind=grammar", f"--to={corpus}", "--documents=2000", "--tasks_examples=0"]
    subprocess.run([sys.executable, "-m", "scalelab.worlds", *world], check=True, cwd=tiny.ROOT)
    flags = [
        f"--config.pretrain.machine.cache_dir={cache_dir}",
        "--config.pretrain.machine.compile_cache_dir=None",
        "--config.pretrain.tokenizer.vocab_size=300",
        "--config.pretrain.optim.total_tokens=60000.0",
        "--config.pretrain.optim.warmup_tokens=6000.0",
        "--config.seeds=1",
        "--config.stages.main.shapes=('2x8x1',)",
        "--config.finetune.seeds=1",
        "--config.finetune.fields=('max_train_examples=32','epochs=1','max_len=32')",
    ]
    made = execute(
        "quickstart", monkeypatch,
        CONFIG=f"configs/studies/quickstart.py:corpus=wikitext:{corpus}", NAME="quickstart",
        WORK=str(tmp_path / "w"), FLAGS=" ".join(flags),
    )  # fmt: skip
    text = shown(made, "text/markdown")
    assert "validation loss" in text and "SwappedWords" in text
    assert all(re.search(rf"\| {system} +\|", text) for system in ("bert", "gpt2", "roberta"))
    assert shown(made, "image/png")
    figures = {path.name for path in (tmp_path / "w/reports/quickstart/figures").iterdir()}
    assert "score_by_task.png" in figures
    assert (tmp_path / "w/reports/quickstart/report.html").exists()


def test_reproduce_tables(monkeypatch, tmp_path, wikitext, cache_dir) -> None:
    flags = [
        f"--config.pretrain.machine.cache_dir={cache_dir}",
        "--config.pretrain.machine.compile_cache_dir=None",
        "--config.pretrain.tokenizer.vocab_size=300",
        "--config.pretrain.optim.total_tokens=60000.0",
        "--config.pretrain.optim.warmup_tokens=6000.0",
        "--config.seeds=1",
        "--config.stages.main.shapes=('2x8x1',)",
        "--config.stages.main.systems=('bert','gpt2')",
        "--config.finetune.tasks=('wnli',)",
        "--config.finetune.seeds=1",
        "--config.finetune.fields=('batch_size=2','epochs=1','max_len=32')",
        "--config.tables=('small',)",
    ]
    made = execute(
        "reproduce_tables", monkeypatch,
        NAME="thesis_7_5_1", SCALE="tiny", CORPUS=f"wikitext:{wikitext}",
        DATA=str(glue_folder.write(tmp_path / "glue")), WORK=str(tmp_path / "w"),
        FLAGS=" ".join(flags),
    )  # fmt: skip
    text = shown(made, "text/markdown")
    assert "WNLI" in text
    assert "1a" in text and "undecided" in text.lower()
