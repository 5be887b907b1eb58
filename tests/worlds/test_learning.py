"""Systems learn what worlds have to teach, up to bounds that are exact, and not beyond them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from scalelab import objectives, state, step, systems
from scalelab.eval import token_scores
from scalelab.formats import ENTITY, PHRASE
from scalelab.optim import adamw
from scalelab.worlds import markov, neighbours

pytestmark = pytest.mark.ci


def batch(tokens: np.ndarray, units: Sequence[int] = ()) -> dict[str, np.ndarray]:
    """Rows [B, T] as a batch of whole examples without special tokens, all with the same units."""
    lengths = np.full(len(tokens), tokens.shape[1], np.int32)
    counts = {"num_bytes": 0 * lengths, "num_text_tokens": lengths}
    places = np.arange(len(tokens), dtype=np.int32)
    marks = {"units": np.tile(np.int32(units), (len(tokens), 1))} if units else {}
    return {"tokens": tokens, "lengths": lengths, "examples": places} | counts | marks


@dataclasses.dataclass(frozen=True)
class Learned:
    """A model of one layer and width 32 that was trained, and its parameters."""

    parts: tiny.Parts
    params: Any

    def log_chances(self, rows: Any, places: np.ndarray) -> np.ndarray:
        """Of all tokens at `places` [B, P]: [B, P, V]."""
        rows = list(rows)
        made = token_scores.pad(rows, self.parts.config.model.max_len, len(rows))
        return np.asarray(
            token_scores.log_chances(self.parts.net, self.params, made, jnp.asarray(places))
        )


def learn(
    system: str,
    vocab_size: int,
    draw: Callable[[int], np.ndarray],
    *,
    num_steps: int,
    learning_rate: float,
    units: Sequence[int] = (),
    **fields: Any,
) -> Learned:
    """Trains on batch after batch of new texts, `draw(step)` [B, T]."""
    max_len = draw(0).shape[1]
    lengths = dict.fromkeys(("model__max_len", "short__max_len", "long__max_len"), max_len)
    parts = tiny.parts(
        system,
        tokenizer__vocab_size=vocab_size,
        model__width=32,
        model__num_layers=1,
        model__dropout_rate=0.0,
        **lengths,
        **fields,
    )
    tx, mesh = tiny.optimizer(parts.config), tiny.one_device()
    model = tiny.model(parts.net, parts.terms, tx)
    now, placed = state.create(model, max_len=max_len, seed=0, mesh=mesh)
    made = step.make_train_step(parts.net, parts.terms, tx)
    run = step.compile_train(made, mesh, placed, now, batch(draw(0), units))
    for k in range(num_steps):
        rate = learning_rate * adamw.linear(k + 1, num_steps // 10, num_steps + 1)
        now, _ = run(now, batch(draw(k), units), jnp.float32(rate))
    return Learned(parts, now.params)


def picked(log_chances: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Minus the log-probability of each target."""
    return -np.take_along_axis(log_chances, targets[..., None], -1)[..., 0]


def test_clm_learns_a_source_of_order_2_to_within_2_percent() -> None:
    source = markov.draw(8, 2, seed=0)
    length = 24
    learned = learn(
        "gpt2",
        source.vocab_size,
        lambda k: source.sample(np.random.default_rng([0, k]), 32, length),
        num_steps=1000,
        learning_rate=2e-2,
    )
    texts = source.sample(np.random.default_rng(1), 256, length)
    places = np.broadcast_to(np.arange(length - 1), (256, length - 1))
    found = picked(learned.log_chances(texts, places), texts[:, 1:])[:, 1:]
    # The same texts under the source itself: what chance made hard or easy of them cancels.
    excess = (
        found + np.log(source.transitions[texts[:, :-2], texts[:, 1:-1], texts[:, 2:]])
    ).mean()
    assert 0 < excess < 0.02 * source.bound(source.order)
    assert found.mean() == pytest.approx(source.bound(source.order), rel=0.05)
    # One token of context, or none, could not do it.
    assert source.bound(1) > 1.5 * source.bound(source.order)
    blind = picked(learned.log_chances(np.roll(texts, 1, axis=0), places), texts[:, 1:])
    assert blind.mean() > source.bound(0)


LETTERS, SPAN = 4, 7
LEFT, GUESS = "nats_of_decided_word_from_left", "accuracy_of_decided_word_from_left"


@pytest.fixture(scope="module")
def world() -> neighbours.Neighbours:
    return neighbours.draw(LETTERS, seed=0)


def learn_neighbours(world: neighbours.Neighbours, system: str, num_steps: int) -> tuple:
    """A model, and 1,024 texts that it has not seen, in its ids."""
    ids = len(tiny.parts(system).module.SPECIAL_TOKENS)
    learned = learn(
        system,
        ids + world.vocab_size,
        lambda k: ids + world.sample(np.random.default_rng([0, k]), 64, SPAN),
        num_steps=num_steps,
        learning_rate=1e-2,
        mask_rate=0.14,  # one token of seven
    )
    return learned, ids + world.sample(np.random.default_rng(1), 1024, SPAN), ids


def test_mlm_knows_a_token_that_its_neighbours_decide(world: neighbours.Neighbours) -> None:
    learned, texts, _ = learn_neighbours(world, "roberta", num_steps=800)
    place = SPAN // 2
    places = np.full((len(texts), 1), place)
    masked = texts.copy()
    masked[:, place] = systems.special_ids(learned.parts.module)["mask"]
    chances = learned.log_chances(masked, places)
    assert (chances.argmax(-1) == texts[:, [place]]).mean() > 0.99
    assert picked(chances, texts[:, [place]]).mean() < 0.05
    # The same model without the right side is no better than the left side allows.
    half = learned.log_chances(masked[:, : place + 1], places)
    most = world.facts()[GUESS] + 4 * np.sqrt(0.25 / len(texts))
    assert (half.argmax(-1) == texts[:, [place]]).mean() < most < 0.9
    assert picked(half, texts[:, [place]]).mean() > 0.95 * world.facts()[LEFT]


def test_elmo_needs_a_joint_layer_for_a_token_that_both_neighbours_decide(world) -> None:
    """Each stream knows what its side tells; scores that add up do not know the token either.

    One hidden layer on both states does, as does the masked model above, without any.
    """
    learned, texts, _ = learn_neighbours(world, "elmo", num_steps=150)
    place = SPAN // 2
    targets, made = texts[:, place], token_scores.pad(list(texts), SPAN, len(texts))
    states, _ = learned.parts.net.apply({"params": learned.params}, made, train=False)
    forward, backward = np.split(np.asarray(states), 2, axis=-1)
    sides = forward[:, place - 1], backward[:, place + 1]
    scores = [side @ learned.params["embed"]["tokens"]["table"].T for side in sides]
    given_right = dataclasses.replace(world, table=world.table.T).given_left
    for own, given in zip(scores, (world.given_left, given_right), strict=True):
        most = given.max(1).mean() + 4 * np.sqrt(0.25 / len(texts))
        assert (own.argmax(-1) == targets).mean() < most < 0.7
        chances = np.asarray(jax.nn.log_softmax(own))
        assert picked(chances, targets).mean() > 0.95 * markov.entropy(given).mean()
    half, both = len(texts) // 2, np.concatenate(sides, axis=1)
    layer = MLPClassifier((16,), solver="lbfgs", max_iter=1000, random_state=0)
    linear, joint = (
        probe.fit(both[:half], targets[:half]).score(both[half:], targets[half:])
        for probe in (LogisticRegression(max_iter=1000), layer)
    )
    assert joint > 0.99 and max(linear, (sum(scores).argmax(-1) == targets).mean()) < 0.93


def test_clm_knows_of_it_what_the_left_neighbour_tells(world: neighbours.Neighbours) -> None:
    learned, texts, ids = learn_neighbours(world, "gpt2", num_steps=200)
    decided = np.arange(1, SPAN, 2)
    chances = learned.log_chances(texts, np.broadcast_to(decided - 1, (len(texts), len(decided))))
    found = picked(chances, texts[:, decided])
    own = world.given_left[texts[:, decided - 1] - ids, texts[:, decided] - ids - LETTERS]
    assert 0 < (found + np.log(own)).mean() < 0.02 * world.facts()[LEFT]
    assert found.mean() == pytest.approx(world.facts()[LEFT], rel=0.03)
    right = (chances.argmax(-1) == texts[:, decided]).mean()
    assert right == pytest.approx(world.facts()[GUESS], abs=0.05)


def with_entities(
    world: neighbours.Neighbours, ids: int, num_pieces: int, seed: Any, count: int
) -> np.ndarray:
    """Texts in which a decided token is an entity: several tokens, each tells the others."""
    texts = ids + world.sample(np.random.default_rng(seed), count, SPAN)
    columns = np.repeat(np.arange(SPAN), np.where(np.arange(SPAN) % 2, num_pieces, 1))
    pieces = np.arange(len(columns)) - np.searchsorted(columns, columns)
    return texts[:, columns] + world.vocab_size * pieces


def test_sbo_knows_an_entity_that_the_tokens_next_to_it_decide(world) -> None:
    """An entity is two tokens; either neighbour alone tells as little as of a decided token."""

    ids = len(tiny.parts("spanbert").module.SPECIAL_TOKENS)
    learned = learn(
        "spanbert",
        ids + 2 * world.vocab_size,
        lambda k: with_entities(world, ids, 2, [0, k], 64),
        num_steps=400,
        learning_rate=1e-2,
        objective_options={"max_span": 2},
        mask_rate=0.2,  # two tokens of ten
    )
    texts, hidden = with_entities(world, ids, 2, 1, 1024), [4, 5]
    places = np.broadcast_to(hidden, (1024, 2))
    read = batch(texts.copy()) | {"mlm_positions": places, "mlm_targets": texts[:, hidden]}
    read["tokens"][:, hidden] = systems.special_ids(learned.parts.module)["mask"]
    read |= {"mlm_weights": np.ones((1024, 2), np.float32), "span_lefts": 0 * places + 3}

    def accuracy(right: int) -> float:
        given = {k: jnp.asarray(x) for k, x in read.items()} | {"span_rights": 0 * places + right}
        ctx = objectives.Pass(jax.random.key(0), accuracy=True)
        found, _ = objectives.forward(
            learned.parts.net, learned.params, given, learned.parts.terms, ctx
        )
        total, weight = found["sbo"]["accuracy"]
        return float(total / weight)

    assert accuracy(6) > 0.99
    assert accuracy(9) < 0.9  # another token than the span's neighbour


def knowledge(world: neighbours.Neighbours, num_steps: int, **rates: float) -> float:
    """Accuracy of an entity of three tokens by its neighbours, after masking at some level.

    A phrase is the first two of the three.
    """
    ids = len(tiny.parts("ernie").module.SPECIAL_TOKENS)
    learned = learn(
        "ernie",
        ids + 3 * world.vocab_size,
        lambda k: with_entities(world, ids, 3, [0, k], 64),
        num_steps=num_steps,
        learning_rate=1e-2,
        units=[*[0, 0, PHRASE | ENTITY, ENTITY] * 3, 0],
        objective_options={"phrase_rate": 0.0, "entity_rate": 0.0} | rates,
        mask_rate=0.23,  # three tokens of thirteen
    )
    texts, hidden = with_entities(world, ids, 3, 1, 1024), [5, 6, 7]
    masked = texts.copy()
    masked[:, hidden] = systems.special_ids(learned.parts.module)["mask"]
    chances = learned.log_chances(masked, np.tile(hidden, (1024, 1)))
    return float((chances.argmax(-1) == texts[:, hidden]).mean())


def test_a_fact_is_learnt_where_entities_are_masked_whole(world: neighbours.Neighbours) -> None:
    words = knowledge(world, 400)
    phrases = knowledge(world, 400, phrase_rate=1.0)
    entities = knowledge(world, 400, entity_rate=1.0)
    assert entities > 0.95 and max(words, phrases) < 0.7


# --- Two tokens that determine each other ----------------------------------------------------

PAIRS = 4  # "New York", "San Juan", ...: equally likely, and no token is in two pairs


def excess_of_pairs(system: str, frame: tuple[str, str], **fields: Any) -> tuple[float, float]:
    """KL divergence of the pairs from p(a) p(b | a) and from p(a) p(b) of a trained model.

    A pair is a text, between two special tokens that are always seen: a query of XLNet that sees
    less than two tokens does not know its place.
    """
    module = systems.load(system)
    ids, first = systems.special_ids(module), len(module.SPECIAL_TOKENS)

    def texts(pairs: np.ndarray) -> np.ndarray:
        begin, end = (np.full(len(pairs), ids[role]) for role in frame)
        columns = begin, first + pairs, first + PAIRS + pairs, end
        return np.stack(columns, axis=1).astype(np.int32)

    learned = learn(
        system,
        first + 2 * PAIRS,
        lambda k: texts(np.random.default_rng([0, k]).integers(PAIRS, size=64)),
        num_steps=200,
        learning_rate=1e-2,
        **fields,
    )
    rows = texts(np.arange(PAIRS))

    def nats(place: int, hidden: slice) -> float:
        read, places = rows.copy(), np.full((PAIRS, 1), place)
        read[:, hidden] = ids["mask"]
        return picked(learned.log_chances(read, places), rows[:, [place]]).mean()

    both = slice(1, 3)
    a = nats(1, both) - np.log(PAIRS)
    return a + nats(2, slice(2, 3)), a + nats(2, both)


def test_plm_knows_the_joint_of_two_tokens_and_mlm_their_marginals() -> None:
    """The mutual information is missing in a product of marginals: log k for k equal pairs."""
    plm = {"objective_options": {"predict_every": 1}, "system_options__memory_len": None}
    chain, product = excess_of_pairs("xlnet", ("sep", "cls"), **plm)
    _, masked = excess_of_pairs("roberta", ("bos", "eos"), mask_rate=0.99)  # both are masked
    assert 0 < chain < 0.02 and np.log(PAIRS) < min(product, masked)
    assert max(product, masked) < np.log(PAIRS) + 0.02
