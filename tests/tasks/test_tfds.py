"""Tasks from TensorFlow Datasets, which is mocked: the records are those of the same rows in files.

Slow to start, since TensorFlow is imported; so all that needs it is here.
"""

import contextlib
import functools
import re
import sys
import time
import warnings
from typing import Any

import glue_folder
import numpy as np
import pytest

from scalelab.tasks import tfds as task_tfds
from scalelab.tasks.records import Labels
from scalelab.tasks.task import load, load_task, remarks, task_names

ZERO_ONE = Labels(("0", "1"))


@pytest.fixture(scope="module")
def tfds():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tensorflow_datasets")


@pytest.fixture
def reached(monkeypatch):
    """What comes from a network is mocked."""
    monkeypatch.setattr(task_tfds, "check_network", lambda: None)


@pytest.fixture
def holding(tfds, reached):
    """A function: from now on, every split holds these examples, or what it says of the split."""
    import tensorflow as tf

    with contextlib.ExitStack() as stack:

        def hold(examples):
            def as_dataset(builder, split, **_):
                there: Any = examples(builder, split) if callable(examples) else examples
                spec = {
                    name: tf.TensorSpec((), feature.tf_dtype)
                    for name, feature in builder.info.features.items()
                }
                return tf.data.Dataset.from_generator(lambda: iter(there), output_signature=spec)

            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(tfds.testing.mock_data(as_dataset_fn=as_dataset))

        yield hold


def test_rows_in_the_order_of_their_index(holding):
    holding(
        [
            {"sentence": "zwei \u2028 Wörter", "label": 0, "idx": 12},
            {"sentence": "", "label": 1, "idx": 3},
            {"sentence": "three", "label": 1, "idx": 7},
        ]
    )
    records = task_tfds.read("cola/train", ("sentence",), ZERO_ONE)
    assert records.texts == (["", "three", "zwei \u2028 Wörter"],)
    assert records.labels is not None and records.labels.dtype == np.int32
    assert records.labels.tolist() == [1, 1, 0]
    assert records.source.startswith("tfds:glue/cola/") and records.source.endswith(", train")


def test_labels_of_a_test_split_are_not_read(holding):
    holding([{"sentence": "a", "label": -1, "idx": 0}])
    assert task_tfds.read("cola/test", ("sentence",), None).labels is None
    with pytest.raises(ValueError, match="idx 0: .*-1 "):
        task_tfds.read("cola/validation", ("sentence",), ZERO_ONE)


def test_without_a_network_it_asks_for_the_files_at_once(tfds, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr(task_tfds.urllib.request, "urlopen", refuse)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    begun = time.monotonic()
    with pytest.raises(ValueError, match="no route.*--data"):
        task_tfds.read("rte/train", ("sentence1", "sentence2"), ZERO_ONE)
    assert time.monotonic() - begun < 30  # not the minutes of its own attempts


def test_no_such_data_set(tfds):
    with pytest.raises(ValueError, match="tfds:glue/colla .*--data"):
        task_tfds.read("colla/train", ("sentence",), ZERO_ONE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rte", "cola", "stsb"])
def test_prepared_for_real(tfds, reached, tmp_path, monkeypatch, name):
    """All but the download is TFDS's own: the records are those of the files it would have got."""
    from tensorflow_datasets.core.download import DownloadManager

    folder = glue_folder.write(tmp_path / "glue")
    monkeypatch.setattr(DownloadManager, "download_and_extract", lambda self, url: str(folder))
    monkeypatch.setattr(
        tfds, "builder", functools.partial(tfds.builder, data_dir=tmp_path / "tfds")
    )
    task = load_task(name)
    ours, theirs = load(task, folder), load(task, None)
    splits = [(ours.train, theirs.train), (ours.dev["dev"], theirs.dev["dev"])]
    for a, b in [*splits, (ours.test["test"], theirs.test["test"])]:
        assert a is not None and b is not None and b.source.startswith(f"tfds:glue/{name}/")
        assert a.texts == b.texts and len(a.texts[0]) == 3
        np.testing.assert_array_equal(a.labels, b.labels)


def test_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ValueError, match="tensorflow-datasets.*--data"):
        load(load_task("cola"), None)


@pytest.mark.parametrize("name", [n for n in task_names() if load_task(n).train.tfds])
def test_every_published_task_is_one_of_theirs(tfds, name):
    """Configs, text features, classes and splits: as TFDS's own code for GLUE has them."""
    task = load_task(name)
    configs = {str(split.tfds).split("/")[0] for split in (task.train, *task.dev_splits)}
    assert configs == {name}
    features = tfds.builder(f"glue/{name}").info.features
    assert set(features) == {*(task.tfds_texts or task.columns.texts), "label", "idx"}
    if task.labels is None:
        assert features["label"].np_dtype == np.float32
    else:
        names = tuple(features["label"].names)  # index 0 must mean the same in files and here
        assert len(names) == len(task.class_names)
        assert names == task.class_names or not set(names) & set(task.class_names), names


def test_a_whole_task(holding):
    """Every split is asked for by its own name, AX from its own config."""

    def examples(builder, split):
        text = f"{builder.builder_config.name}/{split}"
        label = -1 if "test" in split else 2
        return [{"premise": text, "hypothesis": "x", "label": label, "idx": 0}]

    holding(examples)
    splits = load(load_task("mnli"), None)
    asked = {name: r and r.texts[0][0] for name, r in (splits.dev | splits.test).items()}
    assert splits.train.texts[0] == ["mnli/train"]
    assert asked == {
        "matched": "mnli/validation_matched",
        "mismatched": "mnli/validation_mismatched",
        "test_matched": "mnli/test_matched",
        "test_mismatched": "mnli/test_mismatched",
        "AX": "ax/test",
    }
    (remark,) = remarks(load_task("mnli"), splits)
    sizes = "train 1 .*392,702; matched 1 .*NOT .*9,815; mismatched 1 .*NOT .*9,832"
    assert re.fullmatch(f"MNLI {sizes}", remark)
