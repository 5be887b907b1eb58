"""Dialogues from jsonl to roles of tokens, by walking over letters and speakers."""

import itertools
import json
import types

import numpy as np
import pytest
from test_prepare import BYTEBPE, WORDPIECE, prepare_rows

from scalelab.config.pretraining import Data
from scalelab.data.corpora import assign_split, open_corpus
from scalelab.formats import Documents, Specials, dialogue

WORDS = "Mr. Ada saw the tall ship in York. It was old! Go on, see (it) . 1234".split()
SPECIALS = Specials((1001,), (1002,), (1003,))
Turns = list[list[str]]


def invented() -> list[Turns]:
    rng, made = np.random.default_rng(0), []
    for i in range(90):
        speakers = rng.choice(["Ada", "Bob", "Cy", "Di", "Eve"][: 2 + i % 4], rng.integers(2, 9))
        texts = [" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in speakers]
        made.append([[str(s), f" {i} {t}\n"] for s, t in zip(speakers, texts, strict=True)])
    return made


def roles_of(speakers: list[str]) -> list[int]:
    found: dict[str, int] = {}
    return [found.setdefault(speaker, len(found)) for speaker in speakers]


def expected(dialogues: list[Turns]) -> list[list[tuple[str, int]]]:
    """The letters and roles of the turns of each example."""
    found = []
    for turns in dialogues:
        names = [f"speaker {min(role, 3)}" for role in roles_of([s for s, _ in turns])]
        for start in range(0, len(turns), 3):
            roles = roles_of(names[start : start + 3])
            texts = ["".join(text.split()) for _, text in turns[start : start + 3]]
            found.append([*zip(texts, roles, strict=True)])
    return found


@pytest.mark.parametrize("spec", [WORDPIECE, BYTEBPE], ids=["wordpiece", "bytebpe"])
@pytest.mark.parametrize("max_len", [20, 160])
def test_roles_are_those_of_the_speakers(spec, max_len, tmp_path) -> None:
    dialogues = invented()
    made = prepare_rows([{"turns": turns} for turns in dialogues], spec, tmp_path)
    seen, cut = set(), 0
    for split, documents in made.documents.items():
        own = [
            turns for turns in dialogues
            if assign_split("\n".join([t for _, t in turns] + [""]), 0.2) == split
        ]  # fmt: skip
        (chunk,) = dialogue.build(documents, specials=SPECIALS, max_len=max_len)
        wanted = expected(own)
        assert len(chunk) == len(wanted)
        tokens, roles = chunk.ragged["tokens"], chunk.ragged["segments"]
        for i, turns in enumerate(wanted):
            part = slice(*tokens.starts[i : i + 2])
            row, own_roles = tokens.values[part].tolist(), roles.values[part].tolist()
            # Each special token but the first ends a turn.
            ends = [k + 1 for k, token in enumerate(row) if token > 1001]
            assert len(ends) == len(turns) and len(row) <= max_len and ends[-1] == len(row)
            begins = [0, *ends]
            for (begin, end), (letters, role) in zip(
                itertools.pairwise(begins), turns, strict=True
            ):
                pieces = [made.tokenizer.token(t) for t in row[begin:end] if t < 1001]
                text = "".join(p.removeprefix("##").strip("Ġ") for p in pieces)
                assert text == letters or (letters.startswith(text) and len(pieces) >= 1)
                cut += text != letters
                assert own_roles[begin:end] == [role] * (end - begin)
            seen.add(tuple(role for _, role in turns))
    assert {(0,), (0, 1), (0, 1, 0), (0, 1, 1), (0, 0, 1), (0, 1, 2)} <= seen
    assert (cut > 0) == (max_len == 20)


def test_one_turn_has_the_segments_of_a_plain_text() -> None:
    starts, tokens = np.array([0, 3, 5, 9]), np.arange(10, 19, dtype=np.uint16)
    plain = Documents(tokens, starts, np.diff(starts).astype(np.int32), np.array([0, 2, 3]))
    (chunk,) = dialogue.build(plain, specials=SPECIALS, max_len=160)
    assert len(chunk) == 2 and not chunk.ragged["segments"].values.any()
    with pytest.raises(ValueError, match="dialogue needs a corpus with turns"):
        dialogue.annotate({"train": plain}, types.SimpleNamespace(joins=b"", capitals=b""), None)


def test_a_closed_example_ends_as_its_turns(tmp_path) -> None:
    """Each turn of an example ends with `between`."""
    dialogues = invented()
    made = prepare_rows([{"turns": turns} for turns in dialogues], BYTEBPE, tmp_path)
    specials, count = Specials(between=(1002,)), 0
    for documents in made.documents.values():
        given = {"specials": specials, "max_len": 160, "options": dialogue.Options(closed=True)}
        for chunk in dialogue.build(documents, **given):
            tokens, starts = chunk.ragged["tokens"]
            assert (tokens[starts[1:] - 1] == 1002).all()
            count += int((tokens == 1002).sum())
    assert count == sum(map(len, dialogues))


@pytest.mark.parametrize(("turns", "message"), [
    ([["a", "Hello."]], "line 1: .*at least two turns, got 1"),
    ([["a", "Hello."], "b"], "expected a turn .speaker, text., got 'b'"),
    ([["a", "Hello."], ["b", " "]], "expected a turn"),
])  # fmt: skip
def test_bad_turns_are_named(turns, message, tmp_path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"turns": turns}))
    corpus = open_corpus(f"jsonl:{tmp_path}/x.jsonl", Data(valid_rate=0.5))
    with pytest.raises(ValueError, match=message):
        [*corpus.documents("train")]
