"""What tests of evaluations share: programs, and exports that PyTorch loads."""

from collections.abc import Callable
from typing import Any

import law_folders
import pytest

from scalelab.eval import suites
from scalelab.resources import host
from scalelab.training import pretrained

Start = Callable[..., tuple[int, str, str]]
AUTO = {"next": "AutoModelForCausalLM", "masked": "AutoModelForMaskedLM"}


@pytest.fixture
def start(monkeypatch, capsys) -> Start:
    """start(program, evaluation or its name, *arguments) -> exit code, stdout, stderr."""
    monkeypatch.setattr(host, "configure_jax", lambda *_: None)  # it would outlast the test

    def run(program: Any, *arguments: object) -> tuple[int, str, str]:
        name = program if isinstance(program, str) else ""
        if name := name or (program.EVALUATION.name if hasattr(program, "EVALUATION") else ""):
            return law_folders.start(capsys, suites, name, *arguments)
        return law_folders.start(capsys, program, *arguments)

    return run


@pytest.fixture
def refused(start: Start) -> Callable[..., str]:
    """refused(program, *arguments) -> stderr of a program that ends with a user's mistake."""

    def run(*given: object) -> str:
        code, _, errors = start(*given)
        assert code == 2, errors
        return errors

    return run


@pytest.fixture
def exported(pretrained_runs, tmp_path) -> Callable[..., tuple[Any, Any]]:
    """exported(system) -> tokenizer and model of its export as transformers loads them."""
    transformers = pytest.importorskip("transformers")
    from scalelab.interop import exporting

    def load(system: str, auto: str = "", part: str | None = None, **given: Any) -> tuple[Any, Any]:
        run, out = pretrained_runs(system), tmp_path / "out"
        exporting.run(run, out, part=part)
        kind = getattr(transformers, auto or AUTO[pretrained.load(run).predicts])
        return transformers.AutoTokenizer.from_pretrained(out), kind.from_pretrained(
            out, **given
        ).eval()

    return load
