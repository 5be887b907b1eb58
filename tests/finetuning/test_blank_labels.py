"""A label as a blank behind the text, as GLM reads tasks: its words, or a class head."""

import dataclasses

import numpy as np
import pytest
from scipy import special
from test_words import STANDS, Prepare, call, draw, one_bucket, prepare, translator  # noqa: F401

LABELS = ("a", "b", "c")  # a token each


@pytest.mark.ci
@pytest.mark.parametrize("form", ["text", "source"])
def test_a_label_is_read_at_the_blank_behind_the_text(prepare: Prepare, form: str) -> None:  # noqa: F811
    """By its words: a label of one token is the best in a softmax over the labels' words."""
    run = prepare("glm", form, num_rows=16, task=dataclasses.replace(STANDS, labels=LABELS))
    ids, dev = run.tokenizer.special_ids, run.dev["dev"]
    batch = dev.gather(np.arange(41), 60)
    rows = [r[:n].tolist() for r, n in zip(batch["tokens"], batch["lengths"], strict=True)]
    for row in rows:
        assert row[0] == ids["cls"] and row[-2:] == [ids["mask"], ids["sep"]]
        assert row.count(ids["mask"]) == 1
    words = [int(token) for name in LABELS for token in run.tokenizer.encode(name)]
    assert len(words) == 3
    params = draw(run, own=words)
    vectors, scores = call(run, params, source=rows, tokens=[[ids["bos"]]] * 41)
    found = run.predict_with(params, dev)
    if form == "text":
        chances = special.softmax(scores[:, words], axis=1)
        assert found[:, 0].tolist() == chances.argmax(axis=1).tolist()
        assert len({*found[:, 0]}) > 1
        return
    dense, out = (params["head"][name] for name in ("dense", "out"))
    layer = np.tanh(vectors @ dense["kernel"] + dense["bias"])
    np.testing.assert_allclose(found, layer @ out["kernel"] + out["bias"], atol=1e-4)
