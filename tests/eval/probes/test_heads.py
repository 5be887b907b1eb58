"""Attention heads as parsers: by hand, planted heads, and the attentions of transformers."""

import numpy as np
import pytest
import test_states
from scipy import optimize
from test_structural import CHEF, random_sentence

from scalelab.eval import placement
from scalelab.eval.probes import attention, parsers
from scalelab.eval.probes.attention import Attention
from scalelab.eval.probes.parsers import Answers
from scalelab.training import pretrained


def test_words_of_several_pieces_by_hand() -> None:
    """[CLS] a b1 b2 [SEP]: to b the sum, from b the mean."""
    x = np.array([[[1.0, 0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4, 0.0], [0.0, 0.5, 0.1, 0.2, 0.2],
                   [0.0, 0.1, 0.3, 0.2, 0.4], [1.0, 0, 0, 0, 0]]])  # fmt: skip
    pieces = np.array([[1, 2], [2, 4]])
    found = attention.between_words(x, pieces)
    np.testing.assert_allclose(found, [[[0.2, 0.7], [0.3, 0.4]]], rtol=1e-6)
    whole = attention.between_words(x, np.array([[0, 1], [1, 2], [2, 4], [4, 5]]))
    np.testing.assert_allclose(whole.sum(axis=-1), 1.0, rtol=1e-6)


def test_surface_of_known_heads() -> None:
    """Heads that attend to one place, and one that attends to all alike."""
    num, marks = 8, np.arange(8) == 5
    before, same, first, mark = np.eye(num, k=-1), np.eye(num), np.zeros((2, num, num)), None
    first[0, :, 0] = first[1, :, 5] = 1.0
    first, mark = first
    maps = np.stack([before, before.T, same, first, mark, np.full((num, num), 1 / num)])
    sums, counts = attention.surface(maps, range(1, 7), marks)
    assert counts.tolist() == [6] * 7
    names = dict(zip(attention.SURFACE, (sums / counts).T.round(6).tolist(), strict=True))
    order = "previous", "next", "itself", "begin", "punctuation"
    assert [names[name][k] for k, name in enumerate(order)] == [1.0] * 5
    assert names["entropy"] == [0.0] * 5 + [round(np.log(num), 6)]
    assert names["end"][5] == names["begin"][5] == 1 / num
    _, counts = attention.surface(maps[..., :1, :1], range(1), marks[:1])
    assert counts.tolist() == [1, 0, 0, 1, 1, 1, 1]


def planted(num_sentences: int, *, turned: bool = False) -> Attention:
    """Random trees, and 3 heads: noise, one that attends from words to their heads, and noise."""
    rng = np.random.default_rng(0)
    sentences = [random_sentence(rng, int(n)) for n in rng.integers(2, 10, num_sentences)]
    maps = []
    for sentence in sentences:
        own = rng.dirichlet(np.ones(len(sentence.words)), (3, len(sentence.words)))
        for word, head in enumerate(sentence.heads):
            own[1, word] *= 0.2
            own[1, word, head - 1 if head else word] += 0.8
        maps.append(own.swapaxes(1, 2) if turned else own)
    return Attention(sentences, maps, np.zeros(0))


def part(found: Attention, start: int, stop: int) -> Attention:
    return Attention(found.sentences[start:stop], found.maps[start:stop], found.surface)


@pytest.mark.parametrize("turned", [False, True])
def test_a_planted_head_is_found_in_its_direction(turned: bool) -> None:
    found, best = planted(60, turned=turned), 4 if turned else 1
    dev, test = (parsers.answer(part(found, *k), parsers.both_ways) for k in ((0, 40), (40, 60)))
    assert test.hits[best].all()
    assert np.delete(test.hits, best, axis=0).mean(axis=1).max() < 0.8
    chosen = parsers.choose(dev, test)
    assert chosen == {"all": best, "dep": best} and parsers.pick(test, chosen).all()


def test_each_relation_has_its_best_parser() -> None:
    dev = Answers(np.array([[1, 1, 0, 0, 0], [0, 0, 1, 0, 0]], bool), np.array([*"aabbb"]))
    test = Answers(np.array([[1, 0, 1, 1], [0, 1, 1, 0]], bool), np.array([*"abbc"]))
    chosen = parsers.choose(dev, test)
    assert chosen == {"all": 0, "a": 0, "b": 1, "c": 0}
    assert parsers.pick(test, chosen).all()


def test_offsets_by_enumeration() -> None:
    """Without the root and "."; where the place lies beyond the ends there is no answer."""
    given = Attention([CHEF], [np.zeros((1, 5, 5))], np.zeros(0))
    made = parsers.answer(given, parsers.offsets)
    assert made.relations.tolist() == ["det", "nsubj", "advmod"]
    for k, offset in enumerate(parsers.OFFSETS):
        expected = [CHEF.heads[word] - 1 == word + offset for word in (0, 1, 3)]
        assert made.hits[k].tolist() == expected, offset
    assert not parsers.answer(given, parsers.both_ways).hits.any()  # no attention, no answer


def test_all_heads_together_find_the_planted_one() -> None:
    """Weights go to the planted head, read from word to head."""
    found = planted(80)
    dev, test = (parsers.list_choices(part(found, *k)) for k in ((0, 60), (60, 80)))
    weights = parsers.fit(dev)
    assert np.abs(weights).argmax() == 1 and weights[1] > 3 * np.abs(np.delete(weights, 1)).max()
    assert parsers.hits(test, weights).all()
    assert (parsers.hits(test, np.zeros(6)) == (test.sizes == 1)).all()  # ties are no hits
    assert parsers.hits(test, np.eye(6)[0]).mean() < 0.6


def test_the_likelihood_is_fitted() -> None:
    """Against a minimiser without slopes, of the likelihood by loops."""
    found = planted(12)
    found = found._replace(maps=[x[:1] + 0.1 * x[1:2] for x in found.maps])

    def loss(weights: np.ndarray) -> float:
        terms = []
        for sentence, maps in zip(found.sentences, found.maps, strict=True):
            scores = parsers.both_ways(maps)
            for word, head in enumerate(parsers.gold_heads(sentence)):
                others = [k for k in range(len(sentence.words)) if k != word]
                x = {k: float(scores[:, word, k] @ weights) for k in others}
                if head >= 0:
                    terms.append(np.log(sum(map(np.exp, x.values()))) - x[head])
        return float(np.mean(terms))

    weights = parsers.fit(parsers.list_choices(found))
    expected = optimize.minimize(loss, np.zeros(2), method="Nelder-Mead").fun
    assert loss(weights) == pytest.approx(expected, rel=1e-4) and expected < loss(np.zeros(2))


@pytest.mark.parity
@pytest.mark.parametrize("system", ["bert", "gpt2", "albert", "electra"])
def test_transformers_has_the_same_attention(pretrained_runs, exported, system: str) -> None:
    """On the exported checkpoint, of every head; words put together by loops."""
    torch = pytest.importorskip("torch")
    tokenizer, model = exported(system, "AutoModel", attn_implementation="eager")
    opened = pretrained.load(pretrained_runs(system))
    asked = [*map(test_states.sentence, test_states.TEXTS), CHEF]
    found = attention.read(opened, placement.place(opened), asked, batch_tokens=64)
    assert len(found.maps) == len(asked)
    for own, made in zip(asked, found.maps, strict=True):
        given = tokenizer(own.text, return_tensors="pt", return_offsets_mapping=True)
        offsets = given.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            layers = model(**given, output_attentions=True).attentions
        maps = np.concatenate([layer[0].numpy() for layer in layers])
        pieces = [[t for t, (a, b) in enumerate(offsets) if a < stop and b > stop - len(word)]
                  for stop, word in zip(own.stops, own.words, strict=True)]  # fmt: skip
        expected = [[[sum(head[t, s] for t in one for s in other) / len(one) for other in pieces]
                     for one in pieces] for head in maps]  # fmt: skip
        np.testing.assert_allclose(made, expected, atol=1e-5)
