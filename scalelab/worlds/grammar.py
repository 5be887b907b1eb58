"""The sentences of the grammar corpus.

  S    -> ADV NP VP PUNCT                  ADV: the stage of the document
  NP   -> BNP | BNP PP | BNP SBAR          modifiers may hold nouns of either number
  BNP  -> DET NOUN | DET ADJ NOUN
  PP   -> ADP NP
  SBAR -> SCONJ VERB NP | SCONJ NP VERB    "that sees the x", "that the x sees"
  VP   -> VERB NP | AUX VERB PP            "sees the x", "is seen by the x"
        | AUX PART VERB NP | AUX PART VERB PP
        | AUX QUALITY | AUX PART QUALITY   "is good", "is not bad"

A verb agrees with the head of its subject. A sentence has one derivation.
Tags are those of Universal Dependencies; QUALITY is an adjective (ADJ) of no topic.
"""

import dataclasses

from scalelab.worlds.lexicon import (
    BE,
    DETERMINERS,
    DO,
    NUMBERS,
    PREPOSITIONS,
    QUALITIES,
    Lexicon,
    chances,
    noun,
    verb,
)
from scalelab.worlds.pcfg import Pcfg, Right, Symbol, Tree

# First words of the sentences of each stage of a document. One word opens all documents: the first
# token, which a causal net does not predict, carries no information.
STAGES = {
    "open": {"first": 1.0},
    "scene": {"there": 0.6, "here": 0.4},
    "event": {"then": 0.6, "later": 0.4},
    "close": {"finally": 1.0},
}
KINDS = ("deed", *QUALITIES)  # of the predicate
ADJECTIVE_RATE = 0.3
MODIFIER_RATES = {"PP": 0.25, "SBAR": 0.2}  # behind a subject
NESTING_RATE = 0.15  # PP behind any other noun
VOICES = {"active": 0.5, "passive": 0.25, "not active": 0.15, "not passive": 0.1}
NOT_RATE = 0.4  # "not bad" for "good"

Options = dict[Right, float]


def words(table: dict[str, float]) -> Options:
    """Returns rules that choose a word."""
    return {(word,): chance for word, chance in table.items()}


def rules(lexicon: Lexicon) -> dict[Symbol, Options]:
    """Returns the rules: number in NP, VERB, AUX; topic and head where they decide words."""
    made: dict[Symbol, Options] = {("ADV", stage): words(w) for stage, w in STAGES.items()}
    made |= {("PUNCT",): words({".": 1.0}), ("SCONJ",): words({"that": 1.0})}
    made |= {("PART",): words({"not": 1.0}), ("ADP",): words(PREPOSITIONS)}
    made |= {("ADP", "by"): words({"by": 1.0})}
    for num in NUMBERS:
        made[("DET", num)] = words(DETERMINERS[num])
        made[("AUX", "be", num)] = words({BE[num]: 1.0})
        made[("AUX", "do", num)] = words({DO[num]: 1.0})
    for quality, other in zip(QUALITIES, reversed(QUALITIES), strict=True):
        stems = lexicon.qualities[quality]
        made[("ADJ", quality)] = words({stem: 1 / len(stems) for stem in stems})
        for num in NUMBERS:
            made[("VP", quality, num)] = {
                (("AUX", "be", num), ("ADJ", quality)): 1 - NOT_RATE,
                (("AUX", "be", num), ("PART",), ("ADJ", other)): NOT_RATE,
            }
    for topic in range(len(lexicon.topics)):
        made |= _topic_rules(lexicon, topic)
    return made


def _topic_rules(lexicon: Lexicon, topic: int) -> dict[Symbol, Options]:
    own, zipf = lexicon.topics[topic], lexicon.sizes.zipf
    noun_chances = chances(len(own.nouns), zipf)
    verb_chances = dict(zip(own.verbs, chances(len(own.verbs), zipf).tolist(), strict=True))
    adjectives = dict(zip(own.adjectives, chances(len(own.adjectives), zipf), strict=True))
    made: dict[Symbol, Options] = {("ADJ", topic): words(adjectives)}
    for form in (*NUMBERS, "base", "participle"):
        made[("VERB", topic, form)] = words({verb(v, form): p for v, p in verb_chances.items()})
    anything: Options = {(("NP", topic, num),): 0.5 for num in NUMBERS}
    made[("PP", topic)] = {(("ADP",), *np): p for np, p in anything.items()}
    made[("PP", topic, "by")] = {(("ADP", "by"), *np): p for np, p in anything.items()}
    for num in NUMBERS:
        forms = [noun(stem, num) for stem in own.nouns]
        made[("NOUN", topic, num)] = words(dict(zip(forms, noun_chances.tolist(), strict=True)))
        made[("BNP", topic, num)] = _base(topic, num, ("NOUN", topic, num))
        made[("NP", topic, num)] = {
            (("BNP", topic, num),): 1 - NESTING_RATE,
            (("BNP", topic, num), ("PP", topic)): NESTING_RATE,
        }
        clauses: Options = {
            (("SCONJ",), ("NP", topic, other), ("VERB", topic, other)): 0.25 for other in NUMBERS
        }
        for np, p in anything.items():
            clauses[(("SCONJ",), ("VERB", topic, num), *np)] = p / 2
        made[("SBAR", topic, num)] = clauses
        made[("VP", topic, num)] = _deeds(topic, num, anything)
        for head, form in enumerate(forms):
            made |= _subject_rules(topic, num, head, form)
    for head in range(len(own.nouns)):
        made |= _sentences(topic, head)
    return made


def _base(topic: int, num: str, head: Symbol) -> Options:
    return {
        (("DET", num), head): 1 - ADJECTIVE_RATE,
        (("DET", num), ("ADJ", topic), head): ADJECTIVE_RATE,
    }


def _deeds(topic: int, num: str, anything: Options) -> Options:
    """Returns the predicates of a subject of this number, in all voices."""
    base, participle = ("VERB", topic, "base"), ("VERB", topic, "participle")
    do, be = ("AUX", "do", num), ("AUX", "be", num)
    by = ("PP", topic, "by")
    made: Options = {
        (be, participle, by): VOICES["passive"],
        (be, ("PART",), participle, by): VOICES["not passive"],
    }
    for np, p in anything.items():
        made[(("VERB", topic, num), *np)] = p * VOICES["active"]
        made[(do, ("PART",), base, *np)] = p * VOICES["not active"]
    return made


def _subject_rules(topic: int, num: str, head: int, form: str) -> dict[Symbol, Options]:
    """Returns noun phrases with a given head, which the document chooses."""
    noun_symbol, base = ("NOUN", topic, num, head), ("BNP", topic, num, head)
    modifiers = {"PP": ("PP", topic), "SBAR": ("SBAR", topic, num)}
    options: Options = {(base, modifiers[m]): p for m, p in MODIFIER_RATES.items()}
    return {
        noun_symbol: words({form: 1.0}),
        base: _base(topic, num, noun_symbol),
        ("NP", topic, num, head): {(base,): 1 - sum(MODIFIER_RATES.values())} | options,
    }


def _sentences(topic: int, head: int) -> dict[Symbol, Options]:
    made: dict[Symbol, Options] = {}
    for kind in KINDS:
        predicate = topic if kind == "deed" else kind
        for stage in STAGES:
            made[("S", topic, stage, kind, head)] = {
                (("ADV", stage), ("NP", topic, num, head), ("VP", predicate, num), ("PUNCT",)): 0.5
                for num in NUMBERS
            }
    return made


@dataclasses.dataclass(frozen=True)
class Grammar:
    """The grammar of a lexicon.

    Attributes:
      lexicon: the words.
      pcfg: the rules; the symbol of a sentence is ("S", topic, stage, kind, head), with the head of
        its subject as a place in the topic's nouns.
      noun_places: form of a noun -> topic, place in its nouns.
    """

    lexicon: Lexicon
    pcfg: Pcfg
    noun_places: dict[str, tuple[int, int]]

    def last_head(self, tree: Tree) -> int:
        """Returns the place, in its topic's nouns, of the last participant's head.

        The last participant is the second of a deed, or the subject where there is no other.
        """
        _, predicate = (c for c in tree.children if isinstance(c, Tree) and c.label in ("NP", "VP"))
        last = predicate.words()
        nouns = [self.noun_places[word] for word in last if word in self.noun_places]
        return nouns[0][1] if nouns else tree.symbol[4]


def make(lexicon: Lexicon) -> Grammar:
    """Returns the grammar of a lexicon."""
    places = {
        noun(stem, num): (t, i)
        for t, topic in enumerate(lexicon.topics)
        for i, stem in enumerate(topic.nouns)
        for num in NUMBERS
    }
    return Grammar(lexicon, Pcfg(rules(lexicon)), places)
