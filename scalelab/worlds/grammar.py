"""The sentences of the grammar corpus.

The symbol of a sentence is ("S", topic, stage, kind, head); `head` is the index of the subject's
head in the topic's nouns.

  S    -> ADV NP VP PUNCT                  ADV: the stage of the document
  NP   -> BNP | BNP PP | BNP SBAR          modifiers may hold nouns of either number
  BNP  -> DET NOUN | DET ADJ NOUN
  PP   -> ADP NP
  SBAR -> SCONJ VERB NP | SCONJ NP VERB    "that sees the x", "that the x sees"
  VP   -> VERB NP | AUX VERB PP            "sees the x", "is seen by the x"
        | AUX PART VERB NP | AUX PART VERB PP
        | AUX QUALITY | AUX PART QUALITY   "is good", "is not bad"

A verb agrees with the head of its subject. A sentence has one derivation.
Tags are from Universal Dependencies; QUALITY is an adjective (ADJ) that belongs to all topics.
"""

from scalelab.worlds import lexicon as words_lib
from scalelab.worlds.lexicon import BE, DO, NUMBERS, QUALITIES, Lexicon, chances, noun, verb
from scalelab.worlds.pcfg import Right, Symbol

# First words of the sentences of each stage. All documents open with the same word, because a
# causal model does not predict the first token.
STAGES = {
    "open": {"first": 1.0},
    "scene": {"there": 0.6, "here": 0.4},
    "event": {"then": 0.6, "later": 0.4},
    "close": {"finally": 1.0},
}
KINDS = ("deed", *QUALITIES)  # kinds of predicates
ADJECTIVE_RATE = 0.3
MODIFIER_RATES = {"PP": 0.25, "SBAR": 0.2}  # probabilities after a subject
NESTING_RATE = 0.15  # probability of a PP after another noun
VOICES = {"active": 0.5, "passive": 0.25, "not active": 0.15, "not passive": 0.1}
NOT_RATE = 0.4  # probability of "not bad" for "good"

Options = dict[Right, float]


def words(table: dict[str, float]) -> Options:
    """Returns rules that choose a word."""
    return {(word,): chance for word, chance in table.items()}


def rules(lexicon: Lexicon) -> dict[Symbol, Options]:
    """Returns the rules; symbols have number, topic and head if words depend on them."""
    made: dict[Symbol, Options] = {("ADV", stage): words(w) for stage, w in STAGES.items()}
    made |= {("PUNCT",): words({".": 1.0}), ("SCONJ",): words({"that": 1.0})}
    made |= {("PART",): words({"not": 1.0}), ("ADP",): words(words_lib.PREPOSITIONS)}
    made |= {("ADP", "by"): words({"by": 1.0})}
    for num in NUMBERS:
        made[("DET", num)] = words(words_lib.DETERMINERS[num])
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
    own = lexicon.topics[topic]

    def weighted(stems: tuple[str, ...]) -> dict[str, float]:
        return dict(zip(stems, chances(len(stems)).tolist(), strict=True))

    made: dict[Symbol, Options] = {("ADJ", topic): words(weighted(own.adjectives))}
    for form in (*NUMBERS, "base", "participle"):
        made[("VERB", topic, form)] = {(verb(v, form),): p for v, p in weighted(own.verbs).items()}
    anything: Options = {(("NP", topic, num),): 0.5 for num in NUMBERS}
    made[("PP", topic)] = {(("ADP",), *np): p for np, p in anything.items()}
    made[("PP", topic, "by")] = {(("ADP", "by"), *np): p for np, p in anything.items()}
    for num in NUMBERS:
        made[("NOUN", topic, num)] = {(noun(n, num),): p for n, p in weighted(own.nouns).items()}
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
        for head, stem in enumerate(own.nouns):  # the document chooses the head
            base, symbol = ("BNP", topic, num, head), ("NOUN", topic, num, head)
            made[symbol] = {(noun(stem, num),): 1.0}
            made[base] = _base(topic, num, symbol)
            made[("NP", topic, num, head)] = {
                (base,): 1 - sum(MODIFIER_RATES.values()),
                (base, ("PP", topic)): MODIFIER_RATES["PP"],
                (base, ("SBAR", topic, num)): MODIFIER_RATES["SBAR"],
            }
    for head in range(len(own.nouns)):
        for kind in KINDS:
            predicate = topic if kind == "deed" else kind
            for stage in STAGES:
                made[("S", topic, stage, kind, head)] = {
                    (("ADV", stage), ("NP", topic, num, head), ("VP", predicate, num),
                     ("PUNCT",)): 0.5
                    for num in NUMBERS
                }  # fmt: skip
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
