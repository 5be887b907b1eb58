"""How much of scalelab a reader passes: functions on the way to the first loss, and to a report.

The bounds are what is needed today. They may fall, and they do not rise without a reason.
"""

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import tiny

from scalelab.records import archive

pytestmark = pytest.mark.ci
FUNCTIONS, FILES = 414, 64
REPORT_FUNCTIONS, REPORT_FILES = 261, 50


def count(*arguments: str) -> dict[str, Any]:
    """Runs count_calls.py; returns what it prints last."""
    program = [sys.executable, str(tiny.ROOT / "tests/count_calls.py"), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=500)
    return json.loads(done.stdout.splitlines()[-1])


def test_functions_before_the_first_loss(
    wikitext: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = f"pretrain:system=bert,shape=2x8x1,corpus=wikitext:{wikitext},steps=1"
    fields = [
        f"--config.{name.replace('__', '.')}={value}"
        for name, value in tiny.small(cache_dir).items()
    ]
    found = count(
        "--until=loss_fn", "scalelab.train", f"--config={config}", f"--workdir={tmp_path}/run",
        "--config.long.example_rate=0", *fields,
    )  # fmt: skip
    assert found["calls"] == ["train", "compile_blocks", "train_step", "loss_fn"]
    assert found["functions"] <= FUNCTIONS and found["files"] <= FILES, found


def test_functions_of_a_report(tmp_path: pathlib.Path) -> None:
    for name in ("studies", archive.NAME):
        (tmp_path / name).symlink_to(tiny.ROOT / "results/thesis_small" / name)
    found = count("scalelab.study", "report", f"--workdir={tmp_path}", "--study=thesis_7_5_3")
    assert found["functions"] <= REPORT_FUNCTIONS and found["files"] <= REPORT_FILES, found
