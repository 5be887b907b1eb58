"""What tests of evaluations against PyTorch share."""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

AUTO = {"next": "AutoModelForCausalLM", "masked": "AutoModelForMaskedLM"}


@pytest.fixture
def exported(
    pretrained_runs: Callable[[str], pathlib.Path], tmp_path: pathlib.Path
) -> Callable[..., tuple[Any, Any]]:
    """exported(system) -> tokenizer and net of its export as transformers loads them."""
    transformers = pytest.importorskip("transformers")
    from scalelab.interop import exporting
    from scalelab.runs import pretrained

    def load(system: str, auto: str = "", part: str | None = None, **given: Any) -> tuple[Any, Any]:
        run, out = pretrained_runs(system), tmp_path / "out"
        exporting.run(run, out, part=part)
        kind = getattr(transformers, auto or AUTO[pretrained.load(run).predicts])
        return transformers.AutoTokenizer.from_pretrained(out), kind.from_pretrained(
            out, **given
        ).eval()

    return load
