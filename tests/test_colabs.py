"""The notebooks about studies run from top to bottom, on studies small enough for a test."""

import os
import pathlib
import re
import sys
from collections.abc import Callable

import glue_folder
import nbclient
import nbformat
import pytest
import tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture
def execute(monkeypatch, tmp_path, cache_dir) -> Callable[..., nbformat.NotebookNode]:
    """execute(name, flags, **values): with flags and values for a notebook's variables."""
    small = [
        f"--config.pretrain.machine.cache_dir={cache_dir}",
        "--config.pretrain.machine.compile_cache_dir=None",
        "--config.pretrain.machine.loader=numpy",
        "--config.pretrain.tokenizer.vocab_size=300",
        "--config.pretrain.optim.total_tokens=60000.0",
        "--config.pretrain.optim.warmup_tokens=6000.0",
        "--config.seeds=1",
        "--config.stages.main.shapes=('2x8x1',)",
    ]
    always = {
        "WORK": "w",
        "JAX_PLATFORMS": "cpu",
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tiny.ROOT),
        "TQDM_DISABLE": "1",
    }

    def run(name: str, *flags: str, **values: str) -> nbformat.NotebookNode:
        for key, value in (always | {"FLAGS": " ".join([*small, *flags])} | values).items():
            monkeypatch.setenv(key, value)
        notebook = nbformat.read(tiny.ROOT / f"colabs/{name}.ipynb", as_version=4)
        client = nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3")
        client.execute(cwd=str(tmp_path))
        return notebook

    return run


def shown(notebook: nbformat.NotebookNode, kind: str) -> str:
    """Everything of a kind that the cells show, such as text/markdown."""
    return "\n".join(
        part["data"][kind]
        for cell in notebook.cells
        for part in cell.get("outputs", [])
        if kind in part.get("data", {})
    )


def test_quickstart(execute, tmp_path) -> None:
    """The study of `make quickstart` itself, its two systems and its pairs, smaller."""
    made = execute("quickstart", HOME=str(tmp_path))  # where the study keeps its corpus
    text = shown(made, "text/markdown")
    assert "pairs" in text and all(re.search(rf"\| {s} +\|", text) for s in ("bert", "gpt2"))
    figures = list((tmp_path / "w/reports/quickstart/figures").glob("*.png"))
    pictures = [o for c in made.cells for o in c.get("outputs", []) if "image/png" in str(o)]
    assert "loss_by_tokens" in {path.stem for path in figures} and len(pictures) == len(figures)
    assert (tmp_path / "w/reports/quickstart/report.html").exists()


@pytest.mark.ci
def test_reproduce_tables(execute, tmp_path, wikitext) -> None:
    made = execute(
        "reproduce_tables",
        "--config.stages.main.systems=('bert','gpt2')",
        "--config.finetune.tasks=('wnli',)",
        "--config.finetune.seeds=1",
        "--config.finetune.fields=('batch_size=2','epochs=1','max_len=32')",
        "--config.tables=('small',)",
        NAME="thesis_7_5_1", SCALE="tiny", CORPUS=f"wikitext:{wikitext}",
        DATA=str(glue_folder.write(tmp_path / "glue")),
    )  # fmt: skip
    text = shown(made, "text/markdown")
    assert "WNLI" in text and "1a" in text and "undecided" in text.lower()
