"""The facts of an imported checkpoint are read back, or refused by one message."""

import json
import pathlib

import numpy as np
import pytest

from scalelab.interop import side_files
from scalelab.interop.side_files import FACTS, SourceFacts

SOUND = {"sizes": {"vocab_rows": 304}, "dtypes": {"a": "float16"}, "fields": {"pad_token_id": None}}


def test_saved_facts_are_read_back(tmp_path: pathlib.Path) -> None:
    facts, originals = SourceFacts(**SOUND), {"a": np.arange(3, dtype=np.float32)}
    side_files.save_source(tmp_path, facts, originals)
    found, tensors = side_files.load_source(tmp_path)
    assert found == facts
    np.testing.assert_array_equal(tensors["a"], originals["a"])


def test_a_run_that_is_no_import_has_no_facts(tmp_path: pathlib.Path) -> None:
    assert side_files.load_source(tmp_path) == (SourceFacts(), {})


@pytest.mark.parametrize(
    "content",
    [
        *('"', "[", "[1]", "9" * 5000, "[" * 100_000),
        *(json.dumps(SOUND | {"sizes": sizes}) for sizes in (None, [], {"vocab_rows": "a"})),
        *(json.dumps(SOUND | {"dtypes": dtypes}) for dtypes in (3, {"a": []}, {"a": "zz"})),
    ],
    ids=lambda content: content[:60],
)
def test_damaged_facts_are_named(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / FACTS).parent.mkdir()
    (tmp_path / FACTS).write_text(content)
    with pytest.raises(ValueError, match=FACTS):
        side_files.load_source(tmp_path)


def test_damaged_tensors_are_named(tmp_path: pathlib.Path) -> None:
    side_files.save_source(tmp_path, SourceFacts(), {})
    (tmp_path / side_files.ORIGINALS).write_bytes(b"x")
    with pytest.raises(ValueError, match=side_files.ORIGINALS):
        side_files.load_source(tmp_path)
