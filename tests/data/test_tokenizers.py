"""Tokenizers: Hugging Face's AutoTokenizer, reading what we wrote, is the oracle."""

import collections
import json
import random
import shutil

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from test_prepare import BERT, GPT2

from scalelab.data import tokenizers
from scalelab.data.corpora import pieces
from scalelab.data.parallel import DocumentEncoder
from scalelab.formats import Frame

ROBERTA = (
    ("bos", "<s>"), ("pad", "<pad>"), ("eos", "</s>"), ("unk", "<unk>"), ("mask", "<mask>"),
)  # fmt: skip
CLS, S, END = (("[CLS]",), ("[SEP]",), ("[SEP]",)), ("</s>",), ("<|endoftext|>",)
SPECS = {
    name: tokenizers.TokenizerSpec(name.partition(",")[0], *fields)
    for name, fields in {
        "wordpiece": (160, False, BERT, *CLS),
        "wordpiece, lowercase": (160, True, BERT, *CLS),
        "wordpiece_likelihood": (160, True, BERT, *CLS),
        "bytebpe": (340, False, ROBERTA, ("<s>",), S, S),
        "bytebpe, between only": (340, False, GPT2, (), END, ()),
        "bytebpe, no frame": (340, True, GPT2),
        "unigram": (100, False, ROBERTA, ("<s>",), (*S, *S), S),
        "unigram, lowercase": (90, True, ROBERTA),
        "bpe": (160, True, ROBERTA, ("<s>",), S, S),
        "word": (50, False, BERT, *CLS),
        "word, no unknown token": (40, True, GPT2, (), END, ()),
        "char": (50, False, BERT, *CLS),
        "char, no unknown token": (45, True, GPT2, (), END, ()),
    }.items()
}
SUBJECTS = ["The abbey", "A well", "Günther", "The Brontë house", "Nobody", "Her brother-in-law"]
VERBS = ["holds", "restored", "has never seen", "'s kept", "painted", "measured (in 1984)"]
OBJECTS = ["12 buckets of water", "the northern wall", "3.5 % of it", "naïve façades", "a 城"]
TEXTS = [
    f'{s} {v} {o}. {o} {v} {s}, or so they say; "{v}"!'
    for s in SUBJECTS
    for v in VERBS
    for o in OBJECTS
]


class Trained(dict):
    def __repr__(self):
        return "Trained"  # a short one, for failures


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Name of a spec -> folder, our tokenizer, Hugging Face's."""
    made = Trained()
    for name, spec in SPECS.items():
        folder = tmp_path_factory.mktemp(spec.kind)
        tokenizers.train(spec, TEXTS, folder)
        auto = transformers.AutoTokenizer.from_pretrained(folder)
        made[name] = (folder, tokenizers.Tokenizer.load(folder), auto)
    return made


HARD = [
    "",
    " ",
    "The abbey holds 12 buckets.",
    " a leading space, two  spaces\tand a tab\n and lines\r\n",
    "[MASK] <mask> <unk> [UNK] </s> <s> <pad> [PAD] [CLS] [SEP] <|endoftext|> </w> ##s ▁a Ġb",
    "x[MASK]y </s>. (<s>)",
    "ÀÉ ﬁ ① ｆｕｌｌ 漢字 😀 e\u0301 \u200b \u00a0 \u2028 \x00 \x1c \ufffd ẞ İ",
    "a" * 300,
]
ANY = st.one_of(
    st.sampled_from(HARD),
    st.text(st.characters(codec="utf-8"), max_size=60),
    st.lists(
        st.sampled_from([*TEXTS[0].split(), *HARD[4].split(), " ", "  ", "\t", "é", "城", "."])
    ).map(" ".join),
)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=150, deadline=None)
@given(text=ANY, other=ANY)
def test_auto_tokenizer_encodes_as_we_do(trained, name, text, other):
    _, ours, auto = trained[name]
    mine, second = (ids.tolist() for ids in ours.encode_batch([text, other]))
    assert ours.encode(text).tolist() == mine
    special = {i for role, i in ours.special_ids.items() if role != "unk"}
    assert not special & set(mine)  # text never becomes a special token
    assert auto(text, add_special_tokens=False)["input_ids"] == mine
    frame = ours.frame()
    begin, between, end = map(list, (frame.begin, frame.between, frame.end))
    assert auto(text)["input_ids"] == begin + mine + end
    if not other:
        return  # to Hugging Face, an empty second text is none
    paired = auto(text, other, return_token_type_ids=True)
    assert paired["input_ids"] == begin + mine + between + second + end
    first = len(begin + mine + between)
    assert paired["token_type_ids"] == [0] * first + [1] * len(second + end)
    assert auto.decode(mine, clean_up_tokenization_spaces=False) == ours.decode(mine)
    if name in ("bytebpe", "bytebpe, between only"):
        assert ours.decode(mine) == text
    if name == "char":
        known = [char if ours.token_id(char) is not None else "[UNK]" for char in text]
        assert ours.decode(mine) == "".join(known) and len(mine) == len(text)
    if SPECS[name].kind == "word":
        assert ours.encode(ours.decode(i for i in mine if i > len(special))).tolist() == [
            i for i in mine if i > len(special)
        ]


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=100, deadline=None)
@given(documents=st.lists(st.lists(ANY, max_size=4), max_size=4))
def test_sentences_of_a_document_have_its_tokens(trained, name, documents):
    """Word by word with a memory, against the library on whole documents and their prefixes."""
    _, ours, auto = trained[name]
    documents = [
        [t for text in sentences if (t := text.replace("\n", " ").strip())]
        for sentences in documents
    ]
    documents = [sentences for sentences in documents if sentences]
    encode = DocumentEncoder(ours.encode_flat, max_words=10)
    for _ in range(2):  # the second time from memory, as far as that goes
        ids, lengths = encode(documents)
        whole = [auto(" ".join(d), add_special_tokens=False)["input_ids"] for d in documents]
        assert ids.tolist() == [i for found in whole for i in found]
        expected = []
        for sentences in documents:
            upto = [
                len(auto(" ".join(sentences[:n]), add_special_tokens=False)["input_ids"])
                for n in range(len(sentences) + 1)
            ]
            expected += np.diff(upto).tolist()
        assert lengths.tolist() == expected


@pytest.mark.parametrize("name", SPECS)
def test_joins_mark_the_pieces_inside_words(trained, name):
    """Words are the library's, and those of byte pieces and of unigram what white space parts."""
    _, ours, _ = trained[name]
    texts = [*TEXTS, "城 abc naïve, undoubtedly"]
    starts, ids, (_, ends, words) = ours.encode_aligned(texts)
    if SPECS[name].kind in ("bytebpe", "unigram", "char"):
        row = np.searchsorted(starts, np.arange(len(ids)), side="right") - 1
        words = np.array([len(f"{texts[i][:e]}x".split()) for i, e in zip(row, ends, strict=True)])
    marks = np.frombuffer(ours.joins, np.uint8)[ids]
    joined = (marks[1:] & 1 | marks[:-1] & 2) > 0
    inside = ~np.isin(np.arange(1, len(ids)), starts)  # inside a text
    assert len(ours.joins) == ours.vocab_size and joined[inside].mean() < 1
    assert joined.any() != (SPECS[name].kind == "word")
    np.testing.assert_array_equal(joined[inside], (words[1:] == words[:-1])[inside])


@pytest.mark.parametrize("name", SPECS)
def test_capitals_mark_first_letters(trained, name):
    """Special tokens have none, though "[CLS]" is spelt with capitals."""
    _, ours, _ = trained[name]
    marks = np.frombuffer(ours.capitals, np.uint8)
    special = [*ours.special_ids.values()]
    letters = [ours.token(i).lstrip("Ġ▁") for i in np.flatnonzero(marks)]
    assert len(marks) == ours.vocab_size and not marks[special].any()
    # A byte is a piece also where no text has it.
    assert any(letters) != SPECS[name].lowercase or SPECS[name].kind == "bytebpe"
    assert all(a[:1].isupper() or not a[:1].isalpha() for a in letters)


@pytest.mark.parametrize("name", SPECS)
def test_sizes_ids_and_roles(trained, name):
    folder, ours, auto = trained[name]
    spec = SPECS[name]
    assert ours.vocab_size == spec.vocab_size == len(auto)
    assert ours.special_ids == {role: i for i, role in enumerate(spec.roles)}
    assert [*spec.roles.items()][: len(spec.special_tokens)] == [*spec.special_tokens]
    assert "unk" in spec.roles or spec.kind == "bytebpe"
    for role, text in spec.roles.items():
        assert getattr(auto, f"{role}_token") == text
        assert getattr(auto, f"{role}_token_id") == ours.special_ids[role]
        assert ours.token(ours.special_ids[role]) == text
    by_text = {text: i for i, text in enumerate(spec.roles.values())}
    ids = [tuple(by_text[t] for t in part) for part in (spec.begin, spec.between, spec.end)]
    assert ours.frame() == Frame(*ids)
    assert len({ours.token(i) for i in range(ours.vocab_size)}) == ours.vocab_size
    with pytest.raises(ValueError, match=f"id {ours.vocab_size}"):
        ours.token(ours.vocab_size)
    named = json.loads((folder / "special_tokens_map.json").read_text())
    assert named == {f"{role}_token": text for role, text in spec.roles.items()}


@pytest.mark.parametrize("text", ["[]", "3", '{"pad_token": 5}', '{"pad_token": ["[PAD]"]}'])
def test_special_tokens_of_a_wrong_type_are_damage(trained, text, tmp_path):
    folder, _, _ = trained["wordpiece"]
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy/special_tokens_map.json").write_text(text)
    with pytest.raises(ValueError, match="special_tokens_map.json: "):
        tokenizers.Tokenizer.load(tmp_path / "copy")
    objects = json.dumps({"pad_token": {"content": "[PAD]"}})  # as other libraries write them
    (tmp_path / "copy/special_tokens_map.json").write_text(objects)
    assert tokenizers.Tokenizer.load(tmp_path / "copy").special_ids == {"pad": 0}


@pytest.mark.parametrize("name", SPECS)
def test_lowercase(trained, name):
    _, ours, _ = trained[name]
    same = ours.encode("THE ABBEY").tolist() == ours.encode("the abbey").tolist()
    assert same == SPECS[name].lowercase


@pytest.mark.parametrize("name", SPECS)
def test_training_is_the_same_every_time_and_wherever_texts_are_cut(trained, name, tmp_path):
    folder, _, _ = trained[name]
    tokenizers.train(SPECS[name], [part for text in TEXTS for part in pieces(text, 30)], tmp_path)
    for path in sorted(folder.iterdir()):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def naive_bpe(words, num_merges):
    """Sennrich et al. 2016: join the most frequent pair of neighbours, again and again."""
    pieces = {word: tuple(word) for word in words}
    merges = []
    for _ in range(num_merges):
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(pieces[word], pieces[word][1:], strict=False):
                pairs[pair] += count
        (best, count), (_, second) = pairs.most_common(2)
        assert count > second, "a tie: either is right"
        merges.append(best)
        for word, parts in pieces.items():
            joined, i = [], 0
            while i < len(parts):
                step = 2 if parts[i : i + 2] == best else 1
                joined.append("".join(parts[i : i + step]))
                i += step
            pieces[word] = tuple(joined)
    return merges


def test_bytebpe_learns_the_merges_of_a_plain_loop(tmp_path):
    rng = random.Random(3)
    words = {
        "".join(rng.choices("abcd", k=rng.randint(2, 7))): rng.randint(2, 999) for _ in range(40)
    }
    texts = [word for word, count in words.items() for _ in range(count)]
    spec = tokenizers.TokenizerSpec("bytebpe", 256 + 1 + 12, False, GPT2)
    tokenizers.train(spec, texts, tmp_path)
    merges = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"]
    assert [tuple(pair) for pair in merges] == naive_bpe(words, 12)


@pytest.mark.parametrize("kind", tokenizers.KINDS)
def test_a_vocabulary_that_the_corpus_does_not_support(tmp_path, kind):
    spec = tokenizers.TokenizerSpec(kind, 30_000, False, ROBERTA)
    pattern = rf"{kind} .* most (\d+) .*30000.*vocab_size=\1 "
    with pytest.raises(ValueError, match=pattern) as caught:
        tokenizers.train(spec, TEXTS, tmp_path)
    assert list(tmp_path.iterdir()) == []
    size = int(str(caught.value).split("vocab_size=")[1].split()[0])
    if kind != "unigram":  # its pieces depend on the size asked for
        tokenizers.train(tokenizers.TokenizerSpec(kind, size, False, ROBERTA), TEXTS, tmp_path)
        assert tokenizers.Tokenizer.load(tmp_path).vocab_size == size


@pytest.mark.parametrize("kind", ["bytebpe", "unigram"])
def test_a_vocabulary_too_small_for_the_characters(tmp_path, kind):
    spec = tokenizers.TokenizerSpec(kind, 20, False, ROBERTA)
    with pytest.raises(ValueError, match=r"least (\d+) .* 20; .*vocab_size=\1"):
        tokenizers.train(spec, TEXTS, tmp_path)


# --- Words and characters -------------------------------------------------------------------------


def vocabulary(kind, size, texts, folder, special=GPT2, lowercase=False):
    """Trains, and loads from the folder: the tokenizer, and its pieces in the order of ids."""
    tokenizers.train(tokenizers.TokenizerSpec(kind, size, lowercase, special), texts, folder)
    made = tokenizers.Tokenizer.load(folder)
    return made, [made.token(i) for i in range(made.vocab_size)]


def test_words_by_hand(tmp_path):
    """Four "." and "b", three "c"; "a" and "d" tie with two: the first in the alphabet stays."""
    texts = ["b b, c c. d.", "b c. a b.", "a d"]
    ours, pieces = vocabulary("word", 6, texts, tmp_path)
    assert pieces == ["<|endoftext|>", "[UNK]", ".", "b", "c", "a"]
    ids = ours.encode("b c, d. cb")
    assert ids.tolist() == [3, 4, 1, 1, 2, 1]
    assert ours.decode(ids) == "b c [UNK] [UNK] . [UNK]"
    assert ours.count_unknown(ids) == 3


def test_characters_by_hand(tmp_path):
    """Six spaces, five "b", four "c", and "a", "é" and "d" with two each: "a" and "d" stay."""
    texts = ["b b c cb", "b c é éca", "a dbd"]
    ours, pieces = vocabulary("char", 7, texts, tmp_path)
    assert pieces == ["<|endoftext|>", "[UNK]", " ", "a", "b", "c", "d"]
    ids = ours.encode(" cab  é.B")
    assert ids.tolist() == [2, 5, 3, 4, 2, 2, 1, 1, 1]
    assert ours.decode(ids) == " cab  [UNK][UNK][UNK]"
    assert ours.count_unknown(ids) == 3


@pytest.mark.parametrize("kind, split", [("word", str.split), ("char", list)])
def test_a_vocabulary_has_the_most_frequent(tmp_path, kind, split):
    """Against a plain count, where most frequencies tie."""
    rng = random.Random(5)
    texts = [" ".join(rng.choices("abcdefghij 0123456789", k=12)) for _ in range(5)]
    counts = collections.Counter(part for text in texts for part in split(text))
    kept = sorted(counts, key=lambda part: (-counts[part], part))[:8]
    assert len(set(counts.values())) < len(counts) - 5, "no ties"
    for order, shuffled in enumerate([texts, texts[::-1]]):
        (tmp_path / str(order)).mkdir()
        _, pieces = vocabulary(kind, 10, shuffled, tmp_path / str(order))
        assert pieces[2:] == (kept if kind == "word" else sorted(kept))


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(ANY, min_size=1, max_size=3), lowercase=st.booleans())
def test_characters_keep_a_text(tmp_path_factory, texts, lowercase):
    folder = tmp_path_factory.mktemp("char")
    shown = [text.lower() if lowercase else text for text in texts]
    if any(text != "".join(map(str.lower, text)) for text in shown if lowercase):
        return  # a final sigma depends on its neighbors to Python
    size = 2 + len(set("".join(shown)))
    ours, _ = vocabulary("char", size, texts, folder, lowercase=lowercase)
    for text, expected in zip(texts, shown, strict=True):
        assert ours.decode(ours.encode(text)) == expected
