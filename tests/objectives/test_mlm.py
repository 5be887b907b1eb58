"""What is masked, how often, and by what."""

import fractions
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from fake import FakeNet, restored
from scipy import stats

from scalelab import state, step
from scalelab.data.batches import Batches
from scalelab.data.store import ExampleStore
from scalelab.objectives import Pass, Setting, Term, mlm

V, T = 50, 40
SPECIAL_IDS = {"pad": 0, "cls": 1, "sep": 7, "mask": 3, "unk": 30}
SPECIAL = set(SPECIAL_IDS.values())
ORDINARY = np.array([i for i in range(V) if i not in SPECIAL])
MLM = mlm.make(Setting(V, SPECIAL_IDS, 0.15))


def make_batch(size: int = 4000, seed: int = 0) -> dict[str, np.ndarray]:
    """Examples of any length from 0 on, special tokens sprinkled in, padding of id 0."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, T + 1, size).astype(np.int32)
    tokens = rng.choice(ORDINARY, (size, T)).astype(np.int32)
    tokens = np.where(rng.uniform(size=(size, T)) < 0.1, 7, tokens)
    tokens[:, 0] = 1
    tokens[np.arange(T) >= lengths[:, None]] = 0
    return {"tokens": tokens, "lengths": lengths, "examples": np.arange(size, dtype=np.int32)}


BATCH = make_batch()
PREPARED = jax.device_get(jax.jit(MLM.prepare)(BATCH, jax.random.key(0)))
CHOSEN = PREPARED["mlm_weights"] > 0


def test_the_count_is_exact() -> None:
    for tokens, length, weights in zip(
        BATCH["tokens"], BATCH["lengths"], PREPARED["mlm_weights"], strict=True
    ):
        n = sum(int(t) not in SPECIAL for t in tokens[:length])
        assert weights.sum() == math.ceil(fractions.Fraction(15, 100) * n)
    assert PREPARED["mlm_weights"].shape[1] == 6  # ceil(0.15 * 40)


# --- Whole words ------------------------------------------------------------------------------

WORDS = mlm.Options(whole_words=True)


def masked_words(marks: list[int], rate: float, size: int = 3000) -> np.ndarray:
    """Which tokens of one text are chosen in `size` draws: bool [size, T].

    `marks` has for each token what `Tokenizer.joins` has for its piece.
    """
    ids, joins = ORDINARY[-len(marks) :], np.zeros(V, np.uint8)
    joins[ids] = marks
    objective = mlm.make(Setting(V, SPECIAL_IDS, rate, joins=joins.tobytes()), WORDS)
    batch = {"tokens": np.tile(np.r_[1, ids, 7], (size, 1)).astype(np.int32)}
    batch |= {"lengths": np.full(size, len(ids) + 2), "examples": np.arange(size)}
    made = jax.device_get(jax.jit(objective.prepare)(batch, jax.random.key(0)))
    chosen = np.zeros((size, len(ids) + 2), int)
    np.put_along_axis(chosen, made["mlm_positions"], made["mlm_weights"].astype(int), axis=1)
    assert not chosen[:, [0, -1]].any()
    again = made["mlm_targets"] * made["mlm_weights"]
    rows = np.take_along_axis(batch["tokens"], made["mlm_positions"], axis=1)
    np.testing.assert_array_equal(again, rows * made["mlm_weights"])
    return chosen[:, 1:-1] > 0


def test_the_words_of_a_text_by_hand() -> None:
    """un ##believ ##able , dog: of two tokens, "," and "dog", never a part of the first word."""
    found = {tuple(row) for row in masked_words([0, 1, 1, 0, 0], 0.4)}
    assert found == {(False, False, False, True, True)}
    found = {tuple(row) for row in masked_words([0, 1, 1, 0, 0], 0.6)}  # three tokens
    assert found == {(True, True, True, False, False), (False, False, False, True, True)}


@pytest.mark.parametrize("closing", [False, True])
def test_a_word_is_chosen_whole_or_not_at_all_and_the_rate_is_kept(closing: bool) -> None:
    """`closing`: the tokenizer marks a piece that the next one goes on with, as `bpe` does."""
    sizes = [1, 2, 1, 3, 1, 1, 2, 1, 1, 4, 1, 1, 1, 2, 1, 1, 3, 1, 1, 1]  # 20 words, 30 tokens
    marks = [2 * (k < n - 1) if closing else int(k > 0) for n in sizes for k in range(n)]
    chosen = masked_words(marks, 0.15)
    words = np.repeat(np.arange(20), sizes)
    counts = np.stack([chosen[:, words == word].sum(axis=1) for word in range(20)], axis=1)
    assert all(set(counts[:, word]) == {0, n} for word, n in enumerate(sizes))
    total = chosen.sum(axis=1)
    assert total.max() == 5 and (total == 5).mean() > 0.99  # ceil(0.15 * 30)
    ones = (counts > 0).mean(axis=0)[np.array(sizes) == 1]
    assert np.ptp(ones) < 0.05  # words of one size are equally likely


def test_without_whole_words_nothing_changes() -> None:
    """The option leaves the draws of the default as they were; every word of one token: as many."""
    setting = Setting(V, SPECIAL_IDS, 0.15, joins=bytes(V))
    for options in (mlm.Options(), mlm.Options(whole_words=False)):
        made = jax.jit(mlm.make(setting, options).prepare)(BATCH, jax.random.key(0))
        np.testing.assert_array_equal(made["tokens"], PREPARED["tokens"])
    made = jax.jit(mlm.make(setting, WORDS).prepare)(BATCH, jax.random.key(0))
    np.testing.assert_array_equal(
        made["mlm_weights"].sum(axis=1), PREPARED["mlm_weights"].sum(axis=1)
    )


@pytest.mark.parametrize(("rate", "n", "count"), [(0.15, 20, 3), (0.15, 21, 4), (0.1, 30, 3)])
def test_the_count_is_not_rounded_up_by_floats(rate: float, n: int, count: int) -> None:
    objective = mlm.make(Setting(V, SPECIAL_IDS, rate))
    assert objective.num_chosen(64)[n] == count
    batch = {"tokens": np.full((1, n), 10), "lengths": np.full(1, n), "examples": np.zeros(1, int)}
    assert objective.prepare(batch, jax.random.key(0))["mlm_weights"].sum() == count


def test_special_tokens_and_padding_are_never_chosen() -> None:
    for row in range(len(CHOSEN)):
        places = PREPARED["mlm_positions"][row][CHOSEN[row]]
        assert len(set(places)) == len(places)
        assert (places < BATCH["lengths"][row]).all()
        assert not SPECIAL & set(BATCH["tokens"][row][places].tolist())


def test_targets_are_the_tokens_and_the_rest_is_untouched() -> None:
    rows = np.nonzero(CHOSEN)[0]
    places = PREPARED["mlm_positions"][CHOSEN]
    np.testing.assert_array_equal(PREPARED["mlm_targets"][CHOSEN], BATCH["tokens"][rows, places])
    np.testing.assert_array_equal(restored(PREPARED), BATCH["tokens"])
    for name in ("mlm_positions", "mlm_targets", "mlm_weights"):
        assert (PREPARED[name][~CHOSEN] == 0).all()


def test_eighty_ten_ten() -> None:
    rows = np.nonzero(CHOSEN)[0]
    new = PREPARED["tokens"][rows, PREPARED["mlm_positions"][CHOSEN]]
    old = PREPARED["mlm_targets"][CHOSEN]
    masked, kept = new == SPECIAL_IDS["mask"], new == old
    counts = np.array([masked.sum(), kept.sum(), (~masked & ~kept).sum()])
    same = 1 / len(ORDINARY)  # a random token may be the old one
    shares = np.array([0.8, 0.1 + 0.1 * same, 0.1 * (1 - same)])
    assert stats.chisquare(counts, counts.sum() * shares).pvalue > 1e-4


def test_random_tokens_are_uniform_and_never_special() -> None:
    drawn = np.asarray(MLM._random_tokens(jax.random.key(5), 100_000))
    counts = np.bincount(drawn, minlength=V)
    assert not counts[sorted(SPECIAL)].any() and len(counts) == V
    assert stats.chisquare(counts[ORDINARY]).pvalue > 1e-4
    rows = np.nonzero(CHOSEN)[0]
    new = PREPARED["tokens"][rows, PREPARED["mlm_positions"][CHOSEN]]
    assert set(new.tolist()) & SPECIAL == {SPECIAL_IDS["mask"]}


def test_every_place_is_equally_likely() -> None:
    size = 6000
    tokens = np.full((size, T), 10, np.int32)
    batch = {"tokens": tokens, "lengths": np.full(size, T), "examples": np.arange(size)}
    prepared = jax.jit(MLM.prepare)(batch, jax.random.key(1))
    counts = np.bincount(np.asarray(prepared["mlm_positions"]).ravel(), minlength=T)
    # Without replacement the counts vary less than chi-square says: the bound holds all the more.
    assert stats.chisquare(counts).pvalue > 1e-4
    # The action does not depend on the rank in which a place was drawn.
    gathered = jnp.take_along_axis(prepared["tokens"], prepared["mlm_positions"], axis=1)
    by_rank = np.asarray(gathered == SPECIAL_IDS["mask"]).mean(axis=0)
    assert np.abs(by_rank - 0.8).max() < 5 * math.sqrt(0.8 * 0.2 / size)


@pytest.mark.parametrize("rows", [slice(0, 1000), slice(3000, 4000), [7, 3, 3999]], ids=str)
def test_part_of_a_batch_has_the_masks_of_the_whole(rows: slice | list[int]) -> None:
    part = {name: values[rows] for name, values in BATCH.items()}
    prepared = jax.jit(MLM.prepare)(part, jax.random.key(0))
    for name, values in prepared.items():
        np.testing.assert_array_equal(values, PREPARED[name][rows], err_msg=name)


class Number(nn.Module):
    """A model that is one parameter."""

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("number", nn.initializers.zeros, ())


class Places(mlm.MLM):
    """Returns the chosen places of each row as the bits of a number."""

    def losses(self, model: Number, batch: dict[str, jax.Array], ctx: Pass) -> dict:
        del ctx
        codes = jnp.sum(batch["mlm_weights"] * 2.0 ** batch["mlm_positions"], axis=1)
        pairs = {str(row): (code, jnp.ones(())) for row, code in enumerate(codes)}
        return {"loss": (model(), jnp.ones(()))} | pairs


def places_by_epoch(copies: int | None, start: int = 0) -> dict[tuple[int, int], float]:
    """(example, epoch) -> the chosen places, in 12 epochs of 10 examples by batches of 4."""
    length, size = 20, 10
    arrays = {"tokens": np.full(size * length, 10), "tokens_starts": np.arange(size + 1) * length}
    store = ExampleStore(arrays, {"ragged": {"tokens": length}})
    batches = Batches(store, 4, length, seed=3, mask_copies=copies)
    net, terms, tx = Number(), (Term(Places(V, 3, (3,), 0.3)),), optax.scale(-1.0)
    model, mesh = tiny.model(net, terms, tx), tiny.one_device()
    now, _ = state.create(model, max_len=length, seed=0, mesh=mesh)
    run, now = jax.jit(step.make_train_step(net, terms, tx)), now.replace(step=jnp.int32(start))
    found = {}
    for t in range(start, 12 * size // 4):
        batch = batches(t)
        del batch["num_tokens"]
        now, metrics = run(now, batch, jnp.float32(0))
        for row, (example, epoch) in enumerate(zip(*batches.address(t), strict=True)):
            found[int(example), int(epoch)] = float(metrics[f"mlm_{row}"][0])
    return found


@pytest.mark.parametrize("copies", [None, 1, 3])
def test_static_masks_of_one_sequence_are_as_many_as_copies(copies: int | None) -> None:
    found = places_by_epoch(copies)
    assert len(found) == 120 and len({found[i, 0] for i in range(10)}) == 10
    for example in range(10):
        for epochs in range(1, 13):
            seen = {found[example, epoch] for epoch in range(epochs)}
            assert len(seen) == min(epochs, copies or epochs)
    again = places_by_epoch(copies, start=13)  # in the middle of an epoch
    assert again.items() <= found.items()


def test_weight_and_terms() -> None:
    rng = np.random.default_rng(2)
    hidden = rng.normal(size=(*BATCH["tokens"][:20].shape, 6)).astype(np.float32)
    table, bias = rng.normal(size=(V, 6)), rng.normal(size=V)
    net = FakeNet(table.astype(np.float32), bias.astype(np.float32), hidden)
    batch = {name: values[:20] for name, values in PREPARED.items()}
    terms = net.losses(MLM, batch, accuracy=True)
    loss = hits = 0.0
    for row in range(20):
        for place, target, weight in zip(
            *(batch[f"mlm_{k}"][row] for k in ("positions", "targets", "weights")), strict=True
        ):
            scores = (net.table @ hidden[row, place] + net.bias).astype(np.float64)
            loss += weight * (np.log(np.exp(scores).sum()) - scores[target])
            hits += weight * (scores.argmax() == target)
    weight = float(CHOSEN[:20].sum())
    assert terms["loss"][1] == terms["accuracy"][1] == weight
    assert terms["loss"][0] == pytest.approx(loss, rel=1e-5)
    assert terms["accuracy"][0] == pytest.approx(hits, rel=1e-5)


def test_padding_examples_weigh_nothing() -> None:
    batch = {"tokens": np.zeros((3, T), np.int32), "lengths": np.zeros(3), "examples": np.arange(3)}
    prepared = MLM.prepare(batch, jax.random.key(0))
    net = FakeNet(np.ones((V, 6), np.float32), hidden=np.ones((3, T, 6), np.float32))
    assert net.losses(MLM, prepared)["loss"] == (0, 0)
    np.testing.assert_array_equal(prepared["tokens"], 0)
