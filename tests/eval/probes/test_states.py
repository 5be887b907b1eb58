"""Treebanks and frozen states: hand-made CoNLL-U, and the hidden states of transformers."""

import dataclasses
import lzma
import os
import pathlib

import jax
import numpy as np
import pytest
import tiny

from scalelab.eval import placement
from scalelab.eval.probes import states
from scalelab.tasks import treebank
from scalelab.tasks.treebank import Sentence
from scalelab.training import pretrained

DATA = pathlib.Path(os.environ.get("SCALELAB_DATA", tiny.ROOT.parent / "shared/data"))
EWT = DATA / "ud-english-ewt"


def line(place: object, form: str, head: object = "_", *, upos="X", rel="dep", misc="_") -> str:
    return f"{place}\t{form}\t_\t{upos}\t_\t_\t{head}\t{rel}\t_\t{misc}\n"


GOOD = (
    "# text = I don't!\n"
    + line(1, "I", 3, upos="PRON", rel="nsubj")
    + line("2-3", "don't", misc="SpaceAfter=No")
    + line(2, "do", 3, upos="AUX", rel="aux")
    + line(3, "n't", 0, upos="PART", rel="root")
    + line("3.1", "go")
    + line(4, "!", 3, upos="PUNCT", rel="punct", misc="SpaceAfter=No|X=y")
    + "\n\n"
)


def write(folder: pathlib.Path, text: str, split: str = "dev") -> pathlib.Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"en_x-ud-{split}.conllu").write_text(text, encoding="utf-8")
    return folder


def sentence(text: str) -> Sentence:
    words = text.split()
    num = len(words)
    return Sentence(words, ["X"] * num, [*range(num)], ["dep"] * num, [True] * num)


def test_ranges_and_empty_nodes(tmp_path) -> None:
    made = treebank.read(write(tmp_path, GOOD + line(1, "Yes", 0).replace("\n", "\r\n")), "dev")
    expected = Sentence(
        ["I", "do", "n't", "!"], ["PRON", "AUX", "PART", "PUNCT"], [3, 3, 0, 3],
        ["nsubj", "aux", "root", "punct"], [True, False, False, False],
    )  # fmt: skip
    assert made == [expected, Sentence(["Yes"], ["X"], [0], ["dep"], [True])]
    assert (expected.text, expected.stops) == ("I don't!", [1, 4, 7, 8])


def test_compressed(tmp_path) -> None:
    (tmp_path / "en_x-ud-train.conllu.xz").write_bytes(lzma.compress(GOOD.encode()))
    assert len(treebank.read(tmp_path, "train")) == 1
    (tmp_path / "en_x-ud-train.conllu.xz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="train.conllu.xz: "):
        treebank.read(tmp_path, "train")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# text\n\n", "no sentence"),
        ("The\tDET\n", "line 1.*10 fields.*found 2"),
        (line(1, "a", 0) + line("3-2", "bc") + line(2, "b", 1), "line 2.*range 3-2"),
        (line("1-2", "ab") + line(1, "a", 0) + line("2-3", "x") + line(2, "b", 1), "range 2-3"),
        (line("1-3", "ab") + line(1, "a", 0) + line(2, "b", 1), "line 3.*ends at 3"),
        (line(1, "a", 0) + line(3, "b", 1), "line 2.*word 3 after word 1"),
        (line(1, "a", 0) + "\n" + line(1, "b", "_"), "line 3.*'_'"),
        (line(1, "a", 0) + line(2, "b", 0), "no tree"),
        (line(1, "a", 0) + line(2, "b", 3) + line(3, "c", 2), "no tree"),
        (line(1, "a", 7), "no tree"),
    ],
)
def test_other_formats_end_in_one_message(tmp_path, text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        treebank.read(write(tmp_path, text), "dev")
    with pytest.raises(ValueError, match="found none"):
        treebank.read(tmp_path, "test")


@pytest.mark.realdata
def test_the_sizes_of_ewt() -> None:
    if not EWT.is_dir():
        pytest.skip(f"no {EWT}")
    found = [treebank.read(EWT, split) for split in treebank.SPLITS]
    assert [len(part) for part in found] == [12_544, 2_001, 2_077]
    words = [sum(len(own.words) for own in part) for part in found]
    assert words == [204_577, 25_147, 25_094]  # its stats.xml


TEXTS = ["One small unbelievable house .", "a", "The river long again !"]


@pytest.mark.parametrize("system", [
    "bert", "gpt2", *(pytest.param(s, marks=pytest.mark.slow) for s in ("electra", "albert")),
])  # fmt: skip
def test_a_word_is_the_mean_of_its_pieces(pretrained_runs, system: str) -> None:
    """The last layer is the model's output on each sentence alone, unpadded."""
    opened = pretrained.load(pretrained_runs(system))
    asked = [*map(sentence, TEXTS), sentence("word " * 99), treebank_sentence()]
    made = states.read(opened, placement.place(opened), asked, "mean", batch_tokens=64)
    whole = made.vectors
    assert made.numbers.tolist() == [0, 1, 2, 4]
    assert made.sentences == [asked[k] for k in made.numbers] and made.starts[-1] == len(whole)
    frame = opened.tokenizer.frame()
    forward = jax.jit(lambda batch: opened.net.apply({"params": opened.params}, batch, train=False))
    expected = []
    for own in made.sentences:
        ids, ends = opened.tokenizer._backend.encode(own.text, add_special_tokens=False), 0
        row = [*frame.begin, *ids.ids, *frame.end]
        batch = {"tokens": np.array([row]), "lengths": np.array([len(row)]),
                 "examples": np.zeros(1, np.int32)}  # fmt: skip
        hidden = forward(batch)[0][0]
        for word in own.words:
            begin = own.text.index(word, ends)
            ends = begin + len(word)
            pieces = [t for t, (a, b) in enumerate(ids.offsets) if a < ends and b > begin]
            assert pieces
            places = [len(frame.begin) + t for t in pieces]
            expected.append(np.mean(np.asarray(hidden)[places], axis=0))
    np.testing.assert_allclose(whole[:, -1], np.stack(expected), atol=2e-5)
    assert whole.shape == (len(expected), opened.config.model.num_layers + 1, 8)
    parts = {name: states.read(opened, placement.place(opened), asked, name).vectors
             for name in ("first", "last")}  # fmt: skip
    single = np.isclose(parts["first"], parts["last"]).all(axis=(1, 2))
    assert single.any() and not single.all()
    np.testing.assert_allclose(whole[single], parts["last"][single], atol=1e-6)


def treebank_sentence() -> Sentence:
    """Words without spaces between: a piece may belong to two."""
    return Sentence(["I", "do", "n't", "!"], ["X"] * 4, [0, 1, 1, 1], ["dep"] * 4,
                    [True, False, False, False])  # fmt: skip


def test_refused(pretrained_runs) -> None:
    opened = pretrained.load(pretrained_runs("bert"))
    placed = placement.place(opened)
    with pytest.raises(ValueError, match="mean, first, last"):
        states.read(opened, placed, [sentence("a")], "max")
    with pytest.raises(ValueError, match="none of the sentences"):
        states.read(opened, placed, [sentence("word " * 99)])
    broken = jax.tree.map(lambda x: x * np.nan, placed.params)
    with pytest.raises(ValueError, match="not finite"):
        states.read(opened, dataclasses.replace(placed, params=broken), [sentence("a")])


@pytest.mark.parity
@pytest.mark.parametrize("system", ["bert", "roberta", "gpt", "gpt2", "albert", "electra"])
def test_transformers_has_the_same_states(pretrained_runs, exported, system: str) -> None:
    """On the exported checkpoint, every layer; pieces found by the library's own tokenizer."""
    torch = pytest.importorskip("torch")
    tokenizer, model = exported(system, "AutoModel")
    opened = pretrained.load(pretrained_runs(system))
    asked = [*map(sentence, TEXTS), treebank_sentence()]
    found = states.read(opened, placement.place(opened), asked, "first").vectors
    expected = []
    for own in asked:
        given = tokenizer(own.text, return_tensors="pt", return_offsets_mapping=True)
        offsets = given.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            layers = model(**given, output_hidden_states=True).hidden_states
        for stop, word in zip(own.stops, own.words, strict=True):
            place = next(t for t, (a, b) in enumerate(offsets) if a < stop and b > stop - len(word))
            expected.append(torch.stack([layer[0, place] for layer in layers]).numpy())
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-4)
