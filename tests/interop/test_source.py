"""What an import notes beside the parameters is read back, or called damaged in one message."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from scalelab.interop import source
from scalelab.interop.source import FACTS, Source

SOUND = {"sizes": {"vocab_rows": 304}, "dtypes": {"a": "float16"}, "fields": {"pad_token_id": None}}


def test_read_back(tmp_path: pathlib.Path) -> None:
    made = Source(**SOUND, tensors={"a": np.arange(3, dtype=np.float32)})
    made.save(tmp_path)
    found = source.load(tmp_path)
    assert found is not None and (found.sizes, found.dtypes, found.fields) == tuple(SOUND.values())
    np.testing.assert_array_equal(found.tensors["a"], made.tensors["a"])


def test_no_import(tmp_path: pathlib.Path) -> None:
    assert source.load(tmp_path) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"sizes": {"x": 1}}, {"sizes": {"vocab_rows": "a"}}, {"sizes": {"vocab_rows": 0}},
        {"sizes": []}, {"sizes": None}, {"dtypes": {"a": "zz"}}, {"dtypes": {"a": []}},
        {"dtypes": 3}, {"fields": {"hidden_size": 1}}, {"fields": "x"}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_edited(tmp_path: pathlib.Path, changed: dict[str, Any]) -> None:
    (tmp_path / FACTS).parent.mkdir()
    (tmp_path / FACTS).write_text(json.dumps(SOUND | changed))
    with pytest.raises(ValueError, match="source.json or .* is damaged .*: import anew"):
        source.load(tmp_path)


def test_no_json(tmp_path: pathlib.Path) -> None:
    (tmp_path / FACTS).parent.mkdir()
    for text in ("", "[", "[1]", "{}"):
        (tmp_path / FACTS).write_text(text)
        with pytest.raises(ValueError, match="is damaged"):
            source.load(tmp_path)
