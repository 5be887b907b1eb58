"""UniLM's masks against BERT, loops and transformers; the shares of its examples."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.nn.heads import token_logits
from scalelab.systems import bert, unilm

B, T, V = tiny.BATCH, tiny.LENGTH, tiny.VOCAB
SIZES = systems.Sizes(2, 12, 2, 20, T, dropout_rate=0.0)
NO_RATES = dict.fromkeys(("seq2seq_rate", "left_to_right_rate", "right_to_left_rate"), 0.0)
KINDS = {  # name -> options, first segment ids
    "seq2seq": (NO_RATES | {"seq2seq_rate": 1.0}, {4, 5}),
    "left": (NO_RATES | {"left_to_right_rate": 1.0}, {2}),
    "right": (NO_RATES | {"right_to_left_rate": 1.0}, {3}),
    "both": (NO_RATES, {0}),
}


terms = functools.partial(tiny.terms, unilm, rate=0.3)


def prepared(kind: str, batch: Any = None, seed: int = 0) -> Any:
    """A batch whose examples all have one kind of mask."""
    (term,) = terms("unilm", **KINDS[kind][0])
    return jax.jit(term.objective.prepare)(batch or tiny.batch(unilm, 0), jax.random.key(seed))


@functools.cache
def drawn(module: Any) -> tuple[Any, Any]:
    """A model, and parameters far from 0."""
    net = module.build(SIZES, None, V)
    return net, tiny.draw(net, terms("mlm"))


def may_see(kind: str, i: int, j: int, start: int) -> bool:
    """Whether token i sees token j; the target begins at `start`."""
    if kind == "seq2seq":
        return j < start if i < start else j <= i
    return {"left": j <= i, "right": j >= i, "both": True}[kind]


def test_who_sees_whom() -> None:
    """The tokens that a state depends on, by mask; no other mask has the same."""
    starts = np.argmax(prepared("seq2seq")["segments"] == 5, axis=1)
    for kind, (_, ids) in KINDS.items():
        batch = jax.device_get(prepared(kind))
        seen, fits = tiny.seen_places(*drawn(unilm), batch), []
        assert set(np.unique(batch["segments"])) == ids
        for other in KINDS:
            fits.append(all(
                seen[b, i, j] == (j < n and may_see(other, i, j, starts[b]))
                for b, n in enumerate(batch["lengths"]) for i in range(n) for j in range(T)
            ))  # fmt: skip
        assert fits == [other == kind for other in KINDS]


def test_the_bidirectional_mask_is_berts_mlm() -> None:
    """The same masked tokens, loss and gradients, with BERT's two rows of segments."""
    net, params = drawn(unilm)
    rows = params["embed"]["segments"]["table"]
    theirs = params | {"embed": params["embed"] | {"segments": {"table": rows[:2]}}}
    pairs = tiny.batch(bert, 0)  # with second texts

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def run(net: Any, name: str, params: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            found, _ = objectives.forward(
                net, params, batch, terms(name), objectives.Pass(jax.random.key(0))
            )
            return found[name]["loss"][0]

        return jax.value_and_grad(loss)(params)

    prepare = jax.jit(terms("mlm")[0].objective.prepare)
    expected, gradients = run(drawn(bert)[0], "mlm", theirs, prepare(pairs, jax.random.key(0)))
    losses = {kind: run(net, "unilm", params, prepared(kind, pairs)) for kind in ("both", "left")}
    loss, ours = losses["both"]
    assert loss == pytest.approx(float(expected), rel=1e-6)
    table = ours["embed"]["segments"]["table"]
    assert (table[2:] == 0).all() and (np.abs(table[:2]).max(axis=1) > 0).all()
    ours = ours | {"embed": ours["embed"] | {"segments": {"table": table[:2]}}}
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert abs(losses["left"][0] - expected) > 1e-4 * expected


def test_examples_draw_their_masks() -> None:
    """Shares are binomial; a draw belongs to step and example; any token but one is the cut."""
    (term,) = terms("unilm")
    prepare = jax.jit(term.objective.prepare)
    batch = {"tokens": np.full((3000, 8), 9, np.int32), "lengths": np.full(3000, 8, np.int32)}
    batch["tokens"][:, 0], batch["tokens"][:, 7] = 2, 3  # [CLS] six tokens [SEP]
    batch["examples"] = np.arange(3000, dtype=np.int32)
    ids = np.asarray(prepare(batch, jax.random.key(0))["segments"])
    for first, share in ((4, 1 / 3), (2, 1 / 6), (3, 1 / 6), (0, 1 / 3)):
        assert abs((ids[:, 0] == first).mean() - share) < 4 * (share * (1 - share) / 3000) ** 0.5
    starts = np.argmax(ids[ids[:, 0] == 4] == 5, axis=1)
    assert np.unique(starts).tolist() == [2, 3, 4, 5, 6]
    assert np.bincount(starts)[2:].min() > 100
    again = prepare({k: x[::-1] for k, x in batch.items()}, jax.random.key(0))["segments"]
    np.testing.assert_array_equal(again[::-1], ids)
    assert (prepare(batch, jax.random.key(1))["segments"] != ids).any(axis=1).mean() > 0.3


def test_shares_of_more_than_one_are_refused() -> None:
    with pytest.raises(ValueError, match="seq2seq_rate = 0.7.*right_to_left_rate"):
        terms("unilm", seq2seq_rate=0.7)


@pytest.mark.parity
def test_transformers_computes_the_same_under_each_mask() -> None:
    """BertForMaskedLM with a mask [B, 1, T, T]; under another kind's mask it computes others."""
    torch = pytest.importorskip("torch")
    import peers

    shape = (2, 12, 2)
    named = {"name": "BertForMaskedLM", "vocab_size": V, "type_vocab_size": unilm.NUM_SEGMENTS}
    theirs = peers.make("bert", shape, T, **named)
    batches = {kind: jax.device_get(prepared(kind)) for kind in KINDS}
    starts = np.argmax(batches["seq2seq"]["segments"] == 5, axis=1)
    lengths = batches["both"]["lengths"]
    others = dict(zip(KINDS, [*KINDS][1:] + [*KINDS][:1], strict=True))
    valid = np.arange(T) < lengths[:, None]

    def expected(kind: str, batch: Any) -> np.ndarray:
        seen = [[[j < n and may_see(kind, i, j, s) for j in range(T)] for i in range(T)]
                for n, s in zip(lengths, starts, strict=True)]  # fmt: skip
        seen = np.array(seen) | np.eye(T, dtype=bool)  # padding sees itself
        given = {"input_ids": batch["tokens"], "token_type_ids": batch["segments"]}
        given = {name: torch.tensor(np.asarray(x, np.int64)) for name, x in given.items()}
        with torch.no_grad():
            mask = np.where(seen, 0.0, np.finfo(np.float64).min)  # added to the scores
            out = theirs(**given, attention_mask=torch.tensor(mask)[:, None])
        return out.logits.numpy()[valid]

    with tiny.in_double():
        params = peers.weights(theirs)
        sizes = systems.Sizes(*shape, 48, T, dropout_rate=0.0, dtype=jnp.float32)
        net = unilm.build(sizes, None, V)
        for kind, batch in batches.items():
            hidden, _ = net.apply({"params": params}, batch, train=False)
            ours = net.apply({"params": params}, hidden, method=token_logits)[valid]
            np.testing.assert_allclose(ours, expected(kind, batch), rtol=0, atol=1e-10)
            assert np.abs(ours - expected(others[kind], batch)).max() > 0.1
