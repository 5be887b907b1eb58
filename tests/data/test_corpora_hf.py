"""`hf:` against the reader of JSON lines: the same rows from folders of `datasets`."""

import json
import pathlib
import shutil

import pytest
from test_corpora import parquet, texts

from scalelab.config.pretraining import Data
from scalelab.data.corpora import Corpus, open_corpus
from scalelab.helpers import hf_datasets

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

FILES = {
    "train-00000-of-00002": texts(30), "train-00001-of-00002": ["Ünïcode 漢字.\n\nEnd ", *texts(9)],
    "validation-00000-of-00001": texts(5), "test-00000-of-00001": ["", *texts(3)],
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def write(folder: pathlib.Path, kind: str, files: dict[str, list[str]] = FILES) -> pathlib.Path:
    folder.mkdir()
    for name, rows in files.items():
        lines = (json.dumps({"text": row, "n": i}) for i, row in enumerate(rows))
        if kind == "parquet":
            parquet(folder / f"{name}.parquet", rows)
        else:
            (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def documents(corpus: Corpus) -> list[tuple[str, str]]:
    ticks: list[int] = []
    found = list(corpus.labeled(ticks.append))
    assert sum(ticks) == corpus.num_bytes > 0
    return found


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_are_those_of_the_files(tmp_path: pathlib.Path, kind: str) -> None:
    folder = write(tmp_path / "a", kind)
    lines = write(tmp_path / "lines", "jsonl")
    expected = [
        (split, text)
        for split, name in (("train", "train"), ("valid", "validation"), ("test", "test"))
        for _, text in open_corpus(f"jsonl:{lines}/{name}-*").labeled()
    ]
    corpus = open_corpus(f"hf:{folder}")
    assert documents(corpus) == expected and len(expected) == 49
    assert list(corpus.documents("valid")) == texts(5)


def test_the_fingerprint_is_of_the_texts_in_their_order(tmp_path: pathlib.Path) -> None:
    def fingerprint(name: str, kind: str = "jsonl", **changed: list[str]) -> str:
        folder = write(tmp_path / name, kind, {"train": texts(9)} | changed)
        return open_corpus(f"hf:{folder}").fingerprint()

    first = fingerprint("a")
    assert fingerprint("b") == first == fingerprint("c", "parquet")
    shutil.rmtree(tmp_path / "a")
    others = [texts(8), [*texts(8), "x"], texts(9)[::-1], ["".join(texts(2)), "", *texts(9)[2:]]]
    assert fingerprint("a", train=others[0]) != first  # not what `datasets` has kept
    found = {fingerprint(f"d{i}", train=rows) for i, rows in enumerate(others)}
    assert len(found | {first}) == 5


def test_a_source_without_validation_is_divided_as_json_lines_are(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "a", "jsonl", {"train": texts(100)})
    ours, lines = (
        open_corpus(spec, Data(valid_rate=0.2)) for spec in (f"hf:{folder}", f"jsonl:{folder}/*")
    )
    assert documents(ours) == documents(lines)


def test_a_config_of_a_folder(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "a", "jsonl", {"en": texts(3), "de": texts(4)})
    configs = "".join(f"- config_name: {x}\n  data_files: {x}.jsonl\n" for x in ("en", "de"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for name, count in (("en", 3), ("de", 4)):
        rows = open_corpus(f"hf:{folder}/{name}", Data(valid_rate=1e-9))
        assert list(rows.documents("train")) == texts(count)
    with pytest.raises(ValueError, match=f"hf:{folder}/fr: .*'fr'.*'en'"):
        open_corpus(f"hf:{folder}/fr")
    with pytest.raises(ValueError, match=f"hf:{folder}: .*'en'"):
        open_corpus(f"hf:{folder}")


def test_names_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *arguments: {"train": arguments})
    for address, name, config in (
        ("imdb", "imdb", None), ("owner/name", "owner/name", None),
        ("owner/name/config", "owner/name", "config"),
    ):  # fmt: skip
        assert hf_datasets.load(address) == {"train": (name, config)}


@pytest.mark.parametrize(("files", "message"), [
    ({"train": ['{"line": "a"}']}, "no feature 'text'.*line"),
    ({"train": ['{"text": 5}']}, "'text' is .*int64.*string"),
    ({"test": ['{"text": "a"}']}, "no split 'train'.*test"),
    ({"train": ['{"text": "a"']}, "hf:.*a: "),
    ({}, "hf:.*a: .*data files"),
])  # fmt: skip
def test_faults(tmp_path: pathlib.Path, files: dict[str, list[str]], message: str) -> None:
    (tmp_path / "a").mkdir()
    for name, lines in files.items():
        (tmp_path / f"a/{name}.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        open_corpus(f"hf:{tmp_path}/a")
