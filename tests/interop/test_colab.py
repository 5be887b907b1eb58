"""The notebooks run from top to bottom, on checkpoints and data small enough for a test."""

import os
import pathlib
import re
import sys

import glue_folder
import numpy as np
import pytest
import tiny

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import nbclient  # noqa: E402
import nbformat  # noqa: E402
import peers  # noqa: E402
import real_text  # noqa: E402
import transformers  # noqa: E402

from scalelab.records import predictions  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """What a notebook reads: a checkpoint as the hub ships it, and a GLUE folder."""
    model = peers.make("bert", (2, 8, 1), 64, vocab_size=real_text.VOCAB)
    tokenizer = transformers.AutoTokenizer.from_pretrained(real_text.tokenizer_dir("bert"))
    for part in (model.float(), tokenizer):
        part.save_pretrained(tmp_path / "hub")
    values = {
        "MODEL": f"{tmp_path}/hub",
        "TASK": "rte",
        "DATA": str(glue_folder.write(tmp_path / "glue")),
        "WORK": f"{tmp_path}/work",
        "FLAGS": "--config.batch_size=2 --config.epochs=1 --config.max_len=64 --config.machine."
        f"cache_dir={tmp_path}/cache --config.machine.compile_cache_dir=None",
        "JAX_PLATFORMS": "cpu",
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tiny.ROOT),
        "TQDM_DISABLE": "1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.mark.ci
def test_hugging_face_bert(environment: None, tmp_path: pathlib.Path) -> None:
    """Its last cell shows that the exported model scores every example as ours did."""
    notebook = nbformat.read(tiny.ROOT / "colabs/hugging_face_bert.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(tmp_path))
    streams = (part for part in notebook.cells[-1].outputs if part.output_type == "stream")
    last = "".join(part.get("text", "") for part in streams)
    (numbers,) = re.findall(r"(\d+) examples, scores that differ by (\S+) at most", last)
    dev = predictions.read(tmp_path / "work/rte/seed0/predictions.tsv")
    assert dev.texts is not None and dev.probabilities is not None and dev.labels is not None
    assert int(numbers[0]) == len(dev.gold) == 3 and float(numbers[1]) < 1e-4
    # A model of other scores would be seen.
    classify = transformers.pipeline("text-classification", model=str(tmp_path / "work/exported"))
    pairs = [{"text": a, "text_pair": b} for a, b in zip(*dev.texts, strict=True)]
    for pair, ours in zip(pairs, dev.probabilities, strict=True):
        theirs = {answer["label"]: answer["score"] for answer in classify([pair], top_k=None)[0]}
        assert theirs == pytest.approx(dict(zip(dev.labels, ours, strict=True)), abs=1e-4)
    assert np.ptp(dev.probabilities[:, 0]) > 1e-3
    assert any("image/png" in part.get("data", {}) for c in notebook.cells[1:]
               for part in c.get("outputs", []))  # fmt: skip
    assert (tmp_path / "work/exported/model.safetensors").is_file()


def test_notebooks_are_stored_without_outputs() -> None:
    for path in sorted((tiny.ROOT / "colabs").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert code and all(not c.outputs and c.execution_count is None for c in code), path
