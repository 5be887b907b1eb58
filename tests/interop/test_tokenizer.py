"""Tokenizers: what is imported gives the ids that `AutoTokenizer` gives."""

import json
import os
import pathlib
import re
import shutil

import declared
import numpy as np
import pytest
import real_text
import tiny

from scalelab.data import tokenizers
from scalelab.data.tokenizers import Tokenizer
from scalelab.interop import maps, tokenizer
from scalelab.systems import t5

NASTY = [
    "",
    " ",
    "\n\t \r\n",
    "🐢🐢 👩‍👩‍👧 🇵🇱 ☃️",
    "漢字とカナ交じり文、中文。한국어",
    "e\u0301 a\u0308\u0301 Z̸̪͊a̴l̷g̶o̵",
    "null\0 bell\a escape\x1b delete\x7f next\x85line",
    "zero\u200bwidth \u00a0 \u2028 \ufeff \ufffd",
    "mixed العربية עברית हिन्दी ไทย",
    "UPPER lower MiXeD 1234567890 --- ''' \"\" ...",
    "\U0010ffff \ue000",
    "word " * 20_000,
    "x" * 100_000,
]


def make_source(system: str, folder: pathlib.Path, files: str) -> pathlib.Path:
    """A folder with a tokenizer in one of the layouts that there are."""
    trained = real_text.tokenizer_dir(system)
    if files == "tokenizer.json":
        shutil.copytree(trained, folder)
    else:
        folder.mkdir()
        model = json.loads((trained / "tokenizer.json").read_text())["model"]
        if files == "vocab.txt":
            pieces = sorted(model["vocab"], key=model["vocab"].get)
            (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
        else:
            (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
            merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
            (folder / "merges.txt").write_text(
                "#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8"
            )
    (folder / "config.json").write_text(json.dumps({"model_type": maps.load(system).model_type}))
    return folder


SYSTEMS = [family.system for family in maps.load_all()]
OLDER = {"wordpiece": "vocab.txt", "bpe": "merges.txt", "bytebpe": "merges.txt"}
KINDS = {system: declared.get(system).tokenizer for system in SYSTEMS}
LAYOUTS = [(system, "tokenizer.json") for system in SYSTEMS]
SENTENCEPIECE = ("transformer",)  # Marian's older files are no merges
LAYOUTS += [
    (system, OLDER[kind])
    for system, kind in KINDS.items() if kind in OLDER and system not in SENTENCEPIECE
]  # fmt: skip


def compare(folder: pathlib.Path, saved: pathlib.Path, lines: list[str]) -> int:
    """Compares the ids of lines, all three ways; returns how many ids there are."""
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    count = 0
    tokenizer.read(folder).save(saved)
    ours = Tokenizer.load(saved)
    again = transformers.AutoTokenizer.from_pretrained(saved)
    for line, ids in zip(lines, ours.encode_batch(lines), strict=True):
        expected = theirs(line, add_special_tokens=False, truncation=False)["input_ids"]
        np.testing.assert_array_equal(ids, expected, err_msg=line[:60])
        assert again(line, add_special_tokens=False)["input_ids"] == expected, line[:60]
        count += len(expected)
    return count


@pytest.mark.parametrize(("system", "files"), LAYOUTS)
def test_the_same_ids(tmp_path, system: str, files: str) -> None:
    source = make_source(system, tmp_path / "source", files)
    compare(source, tmp_path / "saved", NASTY + real_text.lines())
    read = tokenizer.read(source)
    assert read.kind == declared.get(system).tokenizer
    assert read.lowercase == real_text.lowercase(system)


@pytest.mark.parametrize("kind, size", [("word", 60), ("char", 20), ("bpe", 56)])
def test_words_and_characters_are_told_from_pieces(tmp_path, kind: str, size: int) -> None:
    """The BPE has no merges either: its vocabulary is full of letters."""
    special = (("eos", "<|endoftext|>"),)
    text = "".join(map(chr, range(97, 123))) + " the cat sat on the mat. " * 9
    texts = [text, " ".join(f"{a}{b}" for a in "abcdefgh" for b in "klmnopqr")]
    tokenizers.train(tokenizers.TokenizerSpec(kind, size, False, special), texts, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    read = tokenizer.read(tmp_path)
    assert (read.kind, read.vocab_size) == (kind, size)
    assert not json.loads(read.backend.to_str())["model"].get("merges")
    assert compare(tmp_path, tmp_path / "saved", [*NASTY, *texts]) > 0


def test_text_that_spells_a_special_token_is_text(tmp_path) -> None:
    source = make_source("bert", tmp_path / "source", "vocab.txt")
    tokenizer.read(source).save(tmp_path / "saved")
    ours = Tokenizer.load(tmp_path / "saved")
    assert ours.special_ids["mask"] not in ours.encode("the [MASK] of")


@pytest.mark.realdata
@pytest.mark.parametrize(("system", "files"), LAYOUTS)
def test_the_same_ids_on_real_text(tmp_path, system: str, files: str) -> None:
    """Few ids would be <unk> alone."""
    data = pathlib.Path(os.environ.get("SCALELAB_DATA", tiny.ROOT.parent / "shared/data"))
    found = sorted(p for p in (data / "wikitext-2").rglob("*train*") if p.is_file())
    lines = [line for path in found for line in path.read_text().splitlines() if line.strip()]
    if not lines:
        pytest.skip("no wikitext-2 in the folder of real corpora")
    source = make_source(system, tmp_path / "source", files)
    count = compare(source, tmp_path / "saved", lines[:10_000])
    assert count > sum(map(len, lines[:10_000])) / 4


@pytest.fixture(params=["exported", "published"])
def with_sentinels(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    """A tokenizer of T5 as `transformers` reads it: ours, exported; or with 100 sentinels at the
    end of the vocabulary, <extra_id_0> last, as the published one has them."""
    import transformers

    trained, folder = real_text.tokenizer_dir("t5"), tmp_path / "theirs"
    folder.mkdir()
    if request.param == "exported":
        ours = Tokenizer.load(trained)
        roles = {role: ours.token(number) for role, number in ours.special_ids.items()}
        own = dict(split_special_tokens=False, model_max_length=64)
        tokenizer.export(trained, folder, roles, maps.load("t5"), None, **own)
    else:
        pieces = json.loads((trained / "tokenizer.json").read_text())["model"]["vocab"]
        words = [(piece, score) for piece, score in pieces if not piece.startswith("<")]
        special = [(text, 0.0) for text in ("<pad>", "</s>", "<unk>")]
        sentinels = [(f"<extra_id_{k}>", 0.0) for k in reversed(range(100))]
        transformers.T5TokenizerFast([*special, *words, *sentinels]).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"}))
    return folder


def test_a_gap_in_the_sentinels_is_refused(with_sentinels) -> None:
    named = [(role, text.replace("id_5>", "id_5x>")) for role, text in t5.SPECIAL_TOKENS]
    with pytest.raises(ValueError, match="lacks '<extra_id_5x>', but has later sentinels"):
        tokenizer.read(with_sentinels, named)


def test_sentinels_in_text_have_the_same_ids(with_sentinels, tmp_path: pathlib.Path) -> None:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(with_sentinels)
    tokenizer.read(with_sentinels, t5.SPECIAL_TOKENS).save(tmp_path / "saved")
    ours = Tokenizer.load(tmp_path / "saved")
    named = [ours.special_ids[f"sentinel_{k}"] for k in range(t5.NUM_SENTINELS)]
    assert named == [theirs.convert_tokens_to_ids(f"<extra_id_{k}>") for k in range(len(named))]
    if "<extra_id_99>" in theirs.get_vocab():
        assert named == sorted(named, reverse=True) and named[0] == ours.vocab_size - 1
    for text in (
        "the <extra_id_0> of the<extra_id_1>work",
        "<extra_id_63> the license  <extra_id_1>  work <extra_id_0>",
        "a<extra_id_2><extra_id_3> b",
        *(f"{line} <extra_id_{k}> {line}" for k, line in enumerate(real_text.lines()[:20])),
    ):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode_special(text, ours.special_ids).tolist() == ids, text
        assert {named.index(i) for i in ids if i in named} == {
            int(k) for k in re.findall(r"<extra_id_(\d+)>", text)
        }
