"""Spans of a corpus as units of tokens, by walking over pieces; no span is ever partly masked."""

import json
import pathlib

import jax
import numpy as np
import pytest
from test_prepare import BYTEBPE, WORDPIECE, prepare_rows

from scalelab.data import prepare
from scalelab.data.corpora import UNITS, assign_split, open_corpus
from scalelab.formats import WORD, Documents, Specials, doc_units
from scalelab.objectives import Setting, knowledge_mlm, mlm

WORDS = "Mr. Ada saw the tall ship in York. It-was old! Go on, see (it) . 1234 Lovelace".split()
RATE = 0.5


def invented() -> list[dict]:
    """Documents of odd white space; spans begin and end anywhere, also inside words."""
    rng, made = np.random.default_rng(0), []
    for i in range(80):
        words = rng.choice(WORDS, rng.integers(1, 40))
        text = "".join(f"{w}{rng.choice([' ', '  ', chr(10), ' '])}" for w in [str(i), *words])
        cuts = np.unique(rng.integers(0, len(text), 12)).tolist()
        kinds = rng.choice([*UNITS, "none"], len(cuts) - 1) if cuts else []
        pairs = zip(cuts, cuts[1:], kinds, strict=False)
        spans = [[a, b, str(kind)] for a, b, kind in pairs if kind != "none" and b - a > 1]
        made.append({"text": text, "spans": spans[::-1]} if i % 9 else {"text": text})
    return made


def expected(rows: list[dict], tokens: list[str]) -> tuple[list[int], list[set[int]]]:
    """Walks over the characters of the pieces: each token's bits, and its spans by number."""
    letters: list[tuple[int, int]] = []  # number of the span of each letter, -1: none; its bit
    number = 0
    for row in rows:
        marked = [(-1, 0)] * len(row["text"])
        for begin, end, kind in row.get("spans", ()):
            marked[begin:end] = [(number, UNITS[kind])] * (end - begin)
            number += 1
        letters += [m for m, x in zip(marked, row["text"], strict=True) if not x.isspace()]
    bits, owners, place, before = [], [], 0, {}
    for piece in tokens:
        stop = place + len(piece.removeprefix("##").strip("Ġ"))
        own = dict(letters[place:stop])
        if place == stop and letters[place - 1] == letters[place]:  # a blank in a span
            own = dict(letters[place : place + 1])
        own.pop(-1, None)
        bits.append(sum({bit for k, bit in own.items() if k in before}))
        owners.append({*own})
        place, before = stop, own
    assert place == len(letters)
    return bits, owners


@pytest.fixture(params=[WORDPIECE, BYTEBPE], ids=["wordpiece", "bytebpe"])
def prepared(request, tmp_path: pathlib.Path) -> tuple[list[dict], prepare.Prepared]:
    return (rows := invented()), prepare_rows(rows, request.param, tmp_path)


def test_units_are_those_of_the_spans(prepared) -> None:
    rows, made = prepared
    for split, text in made.documents.items():
        own = [row for row in rows if assign_split(row["text"], 0.2) == split]
        tokens = [made.tokenizer.token(i) for i in text.tokens]
        assert text.units.tolist() == expected(own, tokens)[0]
        assert {*UNITS.values()} <= {*text.units.tolist()}


def test_no_span_is_partly_masked(prepared) -> None:
    """The wrong variant, masks of single tokens, hides parts of spans."""
    rows, made = prepared
    own = [row for row in rows if assign_split(row["text"], 0.2) == "train"]
    documents = doc_units.annotate(made.documents, made.tokenizer, doc_units.Options())["train"]
    assert documents.units is not None and (documents.units & WORD).any()
    pieces = [made.tokenizer.token(i) for i in documents.tokens]
    owners = expected(own, pieces)[1]
    numbered = Documents(
        np.arange(100, 100 + len(pieces), dtype=np.uint32),
        *(documents.sentence_starts, documents.sentence_bytes, documents.document_starts),
        documents.units,
    )
    size, width = made.tokenizer.vocab_size, 24
    (chunk,) = doc_units.build(numbered, specials=Specials((1,), (2,), (3,)), max_len=width)
    starts = chunk.ragged["tokens"].starts
    lengths = np.diff(starts).astype(np.int32)
    batch = {"lengths": lengths, "examples": np.arange(len(lengths), dtype=np.int32)}
    for name in ("tokens", "units"):
        batch[name] = np.zeros((len(lengths), width), np.int32)
        batch[name][np.arange(width) < lengths[:, None]] = chunk.ragged[name].values
    places = batch["tokens"] - 100
    batch["tokens"] = np.where(places < 0, batch["tokens"], 10 + documents.tokens[places])
    setting = Setting(10 + size, {"pad": 0, "cls": 1, "sep": 3, "mask": 4}, RATE)

    def num_parted(objective) -> tuple[int, int]:
        """Number of spans in part hidden, and hidden whole, in an example."""
        done = jax.device_get(jax.jit(objective.prepare)(batch, jax.random.key(0)))
        hidden = np.zeros(places.shape, bool)
        rows, columns = np.nonzero(done["mlm_weights"])
        hidden[rows, done["mlm_positions"][rows, columns]] = True
        parted = whole = 0
        for row, flags in zip(places, hidden, strict=True):
            numbers = {k for p in row[row >= 0] for k in owners[p]}
            for number in numbers:
                own = [f for p, f in zip(row, flags, strict=True) if p >= 0 and number in owners[p]]
                parted, whole = parted + (0 < sum(own) < len(own)), whole + all(own)
        return parted, whole

    # Both kinds are units at once, so that all spans must stay whole.
    batch["units"] = np.where(batch["units"] > 0, 7, 0)
    parted, whole = num_parted(knowledge_mlm.make(setting, knowledge_mlm.Options()))
    assert parted == 0 and whole > 20
    assert num_parted(mlm.make(setting))[0] > 20


@pytest.mark.parametrize(("spans", "message"), [
    ([[0, 3, "entity"], [2, 5, "phrase"]], "from 2 to 5 overlaps"),
    ([[3, 12, "entity"]], "from 3 to 12 .* 11 characters"),
    ([[4, 4, "entity"]], "from 4 to 4"),
    ([[-1, 4, "entity"]], "from -1 to 4"),
    ([[0, 3, "entty"]], "'entty'.*'entity'"),
    ([[0, 3]], "start, end, kind"),
    ([[0, 3.0, "entity"]], "start, end, kind"),
    (5, "start, end, kind"),
])  # fmt: skip
def test_wrong_spans_are_named(tmp_path: pathlib.Path, spans: object, message: str) -> None:
    rows = {"text": "Some words."}, {"text": "More words.", "spans": spans}
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=f"x.jsonl, line 2: .*{message}"):
        list(open_corpus(f"jsonl:{tmp_path}/x.jsonl").labeled())
