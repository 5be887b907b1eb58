"""Sentences: nothing lost, boundaries where a reader would put them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.data import sentences

PROSE = [
    ("It rained. We stayed in.", ["It rained.", "We stayed in."]),
    ("Dr. Smith paid $3.50. Why?", ["Dr. Smith paid $3.50.", "Why?"]),
    ('"Is it late?" she asked. "Yes!" It was.', ['"Is it late?" she asked.', '"Yes!"', "It was."]),
    ("no stop at the end", ["no stop at the end"]),
    ("one line\nanother line. And more", ["one line", "another line.", "And more"]),
    ("  spaces   around.   Two.  ", ["spaces   around.", "Two."]),
    ("\n\n  \n", []),
    ("", []),
]

# Cut by hand, in the manner of the WikiText files.
MOSES = [
    ("It rained . We stayed in .", ["It rained .", "We stayed in ."]),
    ("Mr. Holt ( 1900 – 1980 ) left . Why ?", ["Mr. Holt ( 1900 – 1980 ) left .", "Why ?"]),
    ("1 @.@ 5 km , or less ! Yes .", ["1 @.@ 5 km , or less !", "Yes ."]),
    ('He said , " Go . " She went .', ['He said , " Go . "', "She went ."]),
    ('He went . " Go , " she said .', ["He went .", '" Go , " she said .']),
    ('" One . Two . " Three .', ['" One .', 'Two . "', "Three ."]),
    ("( It rained . ) We , too , left .", ["( It rained . )", "We , too , left ."]),
    (
        "the boys ' room , he said . ' No , ' she said .",
        ["the boys ' room , he said . '", "No , ' she said ."],
    ),
    ("He called : ' Stop , thief ! ' They ran .", ["He called : ' Stop , thief ! '", "They ran ."]),
    ("What , now ? ! Yes .", ["What , now ? !", "Yes ."]),
    ("A pause . . . and , then , more", ["A pause . . .", "and , then , more"]),
]


@pytest.mark.parametrize("document, expected", PROSE + MOSES)
def test_by_hand(document, expected):
    assert sentences.split(document) == expected
    assert sentences.is_moses(document) == ((document, expected) in MOSES)


ANY = st.text(st.sampled_from("aB.?!\"') ( \n\t\u2028\u00a0\x1c,") | st.characters(codec="utf-8"))


@given(ANY)
def test_every_character_is_kept(document):
    pieces = sentences.split(document)
    assert "".join("".join(pieces).split()) == "".join(document.split())
    for piece in pieces:
        assert piece and piece == piece.strip() and "\n" not in piece
    where = 0
    for piece in pieces:  # what stands between two sentences is white space
        found = document.index(piece, where)
        assert not document[where:found].strip()
        where = found + len(piece)
