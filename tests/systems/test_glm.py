"""GLM: blanks as conditional likelihoods, the language model in it, decoding, and GPT-2's class."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import objectives, sample, systems
from scalelab.decode import loop, stepper
from scalelab.decode.choose import Rules
from scalelab.nn.heads import token_logits
from scalelab.nn.masks import Mask
from scalelab.systems import glm, gpt2
from scalelab.systems.glm import net as glm_net

VOCAB, SHAPE, S, T = 23, (3, 24, 2), 9, 7
SIZES = systems.Sizes(*SHAPE, ffn_width=96, max_len=12, dropout_rate=0.0)
IDS = systems.special_ids(glm)
CLS, SEP, MASK, START, END = (IDS[role] for role in ("cls", "sep", "mask", "bos", "eos"))
(TERM,) = tiny.terms(glm, "seq2seq", size=VOCAB)
SOURCES, LENGTHS = np.array([S, 6, 4]), np.array([T, 4, 1])


@functools.cache
def drawn() -> tuple[Any, Any]:
    """A model, and parameters far from 0."""
    net = glm.build(SIZES, None, VOCAB)
    params = tiny.draw(net, (TERM,), 12)
    is_scale = lambda path: path[-1].key == "scale"  # noqa: E731
    return net, jax.tree_util.tree_map_with_path(lambda path, x: x + is_scale(path), params)


def make_batch() -> dict[str, np.ndarray]:
    """Three blanks, out of order; one; and an empty one."""
    source = np.zeros((3, S), np.int32)
    source[0] = CLS, 8, MASK, 9, MASK, MASK, 10, 11, SEP
    source[1, :6] = CLS, MASK, 12, 13, 14, SEP
    source[2, :4] = CLS, 15, MASK, SEP
    tokens, blanks = np.zeros((2, 3, T), np.int32)
    tokens[0], blanks[0] = (16, END, 17, 18, END, 19, END), (4, 4, 2, 2, 2, 5, 5)
    tokens[1, :4], blanks[1, :4] = (20, 21, 22, END), 1
    tokens[2, :1], blanks[2, :1] = END, 2
    given = {"source": source, "source_lengths": SOURCES, "tokens": tokens, "lengths": LENGTHS}
    given |= {"blanks": blanks, "blanks_lengths": LENGTHS, "examples": np.arange(3)}
    return {name: np.asarray(x, np.int32) for name, x in given.items()}


def prepare(batch: Any) -> Any:
    return jax.device_get(TERM.objective.prepare(batch, jax.random.key(0)))


@functools.partial(jax.jit, static_argnums=0)
def log_probs(net: Any, params: Any, batch: Any) -> jax.Array:
    """Log-probabilities [B, T, V] of the tokens of Part B."""
    hidden, _ = net.apply({"params": params}, batch, train=False)
    return jax.nn.log_softmax(net.apply({"params": params}, hidden, method=token_logits))


def likelihoods(batch: Any) -> np.ndarray:
    """Log-probability [B, T] of each token of Part B."""
    found = np.asarray(log_probs(*drawn(), prepare(batch)))
    return np.take_along_axis(found, batch["tokens"][..., None], axis=-1)[..., 0]


def test_the_loss_is_the_sum_of_conditional_likelihoods() -> None:
    """Each token in a pass of its own, behind Part A and the tokens of Part B before it alone."""
    batch, total = make_batch(), 0.0
    for j in range(T):
        now = {name: x.copy() for name, x in batch.items()}
        now["lengths"] = np.minimum(LENGTHS, j + 1).astype(np.int32)
        now["tokens"][:, j + 1 :] = 7
        now["tokens"][:, j] = batch["tokens"][:, j]
        total -= likelihoods(now)[j < LENGTHS, j].sum()
    read, ctx = prepare(batch), objectives.Pass(jax.random.key(0))
    net, params = drawn()
    found, _ = objectives.forward(net, params, read, (TERM,), ctx)
    loss, weight = found["seq2seq"]["loss"]
    assert weight == LENGTHS.sum() and loss == pytest.approx(total, rel=1e-5)


def all_texts(most: int) -> dict[str, np.ndarray]:
    """Every blank of up to `most` - 1 tokens, behind one text with a mask."""
    ordinary = [token for token in range(VOCAB) if token != END]
    texts = [[*x, END] for n in range(most) for x in itertools.product(ordinary, repeat=n)]
    tokens = np.array([x + [0] * (most - len(x)) for x in texts], np.int32)
    source = np.tile(np.array([CLS, 8, MASK, 9, SEP], np.int32), (len(texts), 1))
    given = {"source": source, "source_lengths": np.full(len(texts), 5), "tokens": tokens}
    given |= {"lengths": np.array(list(map(len, texts))), "examples": np.arange(len(texts))}
    return {name: np.asarray(x, np.int32) for name, x in given.items()}


def sum_of_probabilities() -> float:
    """Probability of all blanks of one token at most, and of all longer ones."""
    batch = all_texts(2)
    valid = np.arange(2) < batch["lengths"][:, None]
    found = np.asarray(log_probs(*drawn(), prepare(batch)))
    own = np.take_along_axis(found, batch["tokens"][..., None], axis=-1)[..., 0]
    ended = np.exp((own * valid).sum(axis=1)).sum()
    longer = np.exp(own[1:, 0]) * (1 - np.exp(own[1:, 1]))
    return float(ended + longer.sum())


def show_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong mask: a token of Part B sees later ones."""
    own = glm_net._visible

    def wrong(places: Any, starts: Any) -> Any:
        return {"visible": own(places, starts)["visible"].at[..., 1].set(1000)}

    monkeypatch.setattr(glm_net, "_visible", wrong)
    log_probs.clear_cache()


def test_the_probabilities_of_all_blanks_sum_to_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask that shows later tokens they do not."""
    assert sum_of_probabilities() == pytest.approx(1.0, abs=1e-5)
    show_all(monkeypatch)
    assert abs(sum_of_probabilities() - 1) > 1e-2
    log_probs.clear_cache()


def test_another_order_of_blanks_changes_the_conditions_alone() -> None:
    """The first blank depends on Part A alone: on no other blank, wherever its mask is."""
    batch = make_batch()
    cuts = {4: slice(0, 2), 2: slice(2, 5), 5: slice(5, 7)}  # place of the mask -> its tokens
    alone, first, second = {}, {}, {}
    for order in itertools.permutations(cuts):
        now = {name: x.copy() for name, x in batch.items()}
        for name in ("tokens", "blanks"):
            now[name][0] = np.concatenate([batch[name][0, cuts[place]] for place in order])
        found, sizes = likelihoods(now)[0], [cuts[p].stop - cuts[p].start for p in order]
        first.setdefault(order[0], []).append(found[: sizes[0]])
        second.setdefault(order[1], []).append(found[sizes[0] : sizes[0] + sizes[1]])
        now["lengths"][0] = sizes[0]
        alone[order[0]] = likelihoods(now)[0, : sizes[0]]
    for place, own in first.items():
        np.testing.assert_allclose(own, [alone[place]] * 2, rtol=1e-4, atol=1e-4)
        assert all(np.abs(x - alone[place]).max() > 1e-3 for x in second[place])


def test_blanks_of_one_token_are_masked_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one alone has the MLM loss of the state of [S], and any order has it without the others.

    With the mask of Part B only the first blank has it.
    """
    source = [CLS, 8, MASK, 9, MASK, MASK, SEP]
    answers = {2: 16, 4: 17, 5: 18}  # place of the mask -> its token
    orders = np.array([*itertools.permutations(answers)])

    def read(blanks: np.ndarray, tokens: np.ndarray, **more: Any) -> dict[str, np.ndarray]:
        size, length = blanks.shape
        given = {"source": [source] * size, "source_lengths": [len(source)] * size}
        given |= {"lengths": [length] * size, "examples": range(size)}
        given |= {"blanks": blanks, "tokens": tokens} | more
        return {name: np.asarray(x, np.int32) for name, x in given.items()}

    def in_order(orders: np.ndarray) -> np.ndarray:
        """Log-probability of the token of each blank of Part B."""
        tokens = np.full((len(orders), 2 * orders.shape[1]), END)
        tokens[:, ::2] = np.vectorize(answers.get)(orders)
        return likelihoods(read(np.repeat(orders, 2, axis=1), tokens))[:, ::2]

    places = np.array([*answers])[:, None]
    alone = dict(zip(answers, in_order(places)[:, 0], strict=True))
    zeros, targets = np.zeros((3, 1)), np.vectorize(answers.get)(places)
    masked = {"mlm_positions": zeros, "mlm_targets": targets, "mlm_weights": 1 + zeros}
    batch = read(places, np.full((3, 1), START), **masked)
    terms, ctx = tiny.terms(glm, "mlm", size=VOCAB), objectives.Pass(jax.random.key(0))
    found, _ = objectives.forward(*drawn(), batch, terms, ctx)
    assert float(found["mlm"]["loss"][0]) == pytest.approx(-sum(alone.values()), rel=1e-5)
    wanted, given = np.vectorize(alone.get)(orders), in_order(orders)
    np.testing.assert_allclose(given[:, 0], wanted[:, 0], rtol=1e-4, atol=1e-4)
    assert np.abs(given - wanted)[:, 1:].min() > 1e-3

    own, at = Mask.dense, np.arange(len(source) + 6)
    blank = np.where(at < len(source), -1, (at - len(source)) // 2)
    together = (blank[:, None] == blank) | (blank == -1)
    with monkeypatch.context() as patch:
        patch.setattr(Mask, "dense", lambda *given: own(*given) & together)
        log_probs.clear_cache()
        np.testing.assert_allclose(in_order(orders), wanted, rtol=1e-4, atol=1e-4)
    log_probs.clear_cache()


def test_one_blank_over_everything_is_a_language_model() -> None:
    """GPT-2's model, whose positions are those of the blank, at the place of its mask."""
    net, params = drawn()
    embed, lm = params["decoder"]["embed"], gpt2.build(SIZES, None, VOCAB)
    positions = embed["inner"]["table"][1:13] + embed["places"]["table"][0]
    own = {"stack": params["decoder"]["stack"], "norm": params["decoder"]["norm"]}
    own["embed"] = {"tokens": embed["tokens"], "positions": {"table": positions}}
    batch = make_batch()
    del batch["blanks"]
    batch |= {"source_lengths": np.zeros(3, np.int32), "lengths": np.full(3, T, np.int32)}
    batch["tokens"] = np.random.default_rng(0).integers(7, VOCAB, (3, T)).astype(np.int32)
    batch["tokens"][:, 0] = START
    read = {name: batch[name] for name in ("tokens", "lengths", "examples")}
    expected = log_probs(lm, own, read)
    np.testing.assert_allclose(log_probs(net, params, batch), expected, rtol=1e-4, atol=1e-4)


def test_blanks_are_decoded_one_after_another_from_left_to_right() -> None:
    """Step by step as in one pass; an end begins the next blank, a start token in one does not."""
    net, params = drawn()
    batch = {name: np.array(x) for name, x in prepare(make_batch()).items()}
    batch["tokens"][0] = START, 16, START, END, 18, END, 19
    batch["blanks"][0] = 2, 2, 2, 4, 4, 5, 5
    hidden = functools.partial(net.apply, {"params": params}, train=False)
    whole, _ = hidden(batch)
    del batch["blanks"]
    np.testing.assert_allclose(hidden(batch)[0][0], whole[0], rtol=1e-4, atol=1e-4)
    cache = net.apply({"params": params}, batch, T, method="encode")
    for begin, end in ((0, 2), (2, 3), (3, 4), (4, 7)):
        piece = {"tokens": batch["tokens"][:, begin:end], "examples": batch["examples"]}
        piece["lengths"] = np.full(3, end - begin, np.int32)
        found, cache = hidden(piece, cache=cache)
        np.testing.assert_allclose(found[0], whole[0, begin:end], rtol=1e-4, atol=1e-4)


def test_a_blank_of_unknown_length_is_filled_until_its_end() -> None:
    """Greedily, by the loop of `scalelab.sample`, as by whole passes."""
    net, params = drawn()
    params = jax.tree.map(np.copy, params)
    batch, lengths = make_batch(), set()
    for seed in range(20):
        end = 3 * np.random.default_rng(seed).normal(size=SHAPE[1])  # large: some blanks end
        params["decoder"]["embed"]["tokens"]["table"][END] = end
        made = stepper.prepare(net, params)
        source = batch["source"][1].copy()
        source[2:5] = np.random.default_rng(seed).integers(7, VOCAB, 3)
        given = {"source": source[None, :6], "source_lengths": np.array([6], np.int32)}
        written: list[int] = []
        while len(written) < 6 and END not in written:
            tokens = np.zeros((1, 6), np.int32)
            tokens[0, : len(written) + 1] = START, *written
            read = given | {"tokens": tokens, "examples": np.arange(1)}
            read["lengths"] = np.array([len(written) + 1], np.int32)
            written.append(int(log_probs(net, params, read)[0, len(written)].argmax()))
        (found,) = loop.generate(
            made, [np.array([START], np.int32)], Rules(), max_new_tokens=6, max_len=12,
            end_token=END, sources=[source[:6]],
        )  # fmt: skip
        ended = written[-1] == END
        assert found.tokens.tolist() == written[: len(written) - ended]
        assert found.ended_by == ("end" if ended else "length")
        lengths.add(len(written))
        if len(lengths) > 1:
            return
    raise AssertionError("every blank is as long")


def test_several_blanks_are_filled_until_the_last_has_ended() -> None:
    """Greedily, as by whole passes that name each token's mask; one end is too few."""
    net, params = drawn()
    params = jax.tree.map(np.copy, params)
    source, masks = np.array([7, MASK, 9, MASK, MASK, 11], np.int32), (1, 3, 4)
    given = {"source": source[None], "source_lengths": np.array([6], np.int32)}
    ended = 0
    for seed in range(20):
        params["decoder"]["embed"]["tokens"]["table"][END] = 3 * np.random.default_rng(seed).normal(
            size=SHAPE[1]
        )  # large: some blanks end
        written: list[int] = []
        while len(written) < 6 and written.count(END) < 3:
            tokens, blanks = np.zeros((2, 1, 6), np.int32)
            begun = [START, *written]
            tokens[0, : len(begun)] = begun
            blanks[0, : len(begun)] = np.array(masks)[np.cumsum(np.array(begun) == END)]
            read = given | {"tokens": tokens, "blanks": blanks, "examples": np.arange(1)}
            read["lengths"] = np.array([len(begun)], np.int32)
            written.append(int(log_probs(net, params, read)[0, len(begun) - 1].argmax()))
        if END not in written[:-1]:
            continue
        sizes = {"max_new_tokens": 6, "max_len": 12, "end_token": END, "sources": [source]}
        made, start = stepper.prepare(net, params), [np.array([START], np.int32)]
        (found,) = loop.generate(made, start, Rules(), ends=[3], **sizes)
        all_ended = written.count(END) == 3
        assert found.tokens.tolist() == written[: len(written) - all_ended]
        assert found.ended_by == ("end" if all_ended else "length")
        (one,) = loop.generate(made, start, Rules(), **sizes)
        assert one.tokens.tolist() == written[: written.index(END)]
        ended += all_ended
    assert ended


def test_the_texts_of_blanks_take_the_places_of_their_masks() -> None:
    """A mask whose text was not written stays."""
    source = np.array([7, MASK, 9, MASK, MASK])
    written = [20, 21, END, 22, END]
    assert sample._fill_blanks(source, MASK, [*written, 23], END) == [7, 20, 21, 9, 22, 23]
    assert sample._fill_blanks(source, MASK, written[:3], END) == [7, 20, 21, 9, MASK]
    assert sample._fill_blanks(source, MASK, [20], END) == [7, 20, 9, MASK, MASK]


@pytest.mark.ci
@pytest.mark.parity
def test_it_is_gpt2s_class_with_an_explicit_mask_and_summed_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Log-probabilities and gradients in float64; wrong masks and positions give others."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import peers

    batch, model = prepare(make_batch()), peers.make("gpt2", SHAPE, S + T, vocab_size=VOCAB)
    rng = np.random.default_rng(0)
    tables = [torch.tensor(0.5 * rng.normal(size=(n, SHAPE[1])), requires_grad=True)
              for n in (12, 13)]  # fmt: skip
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
    rows = np.zeros((3, 3, S + T), np.int64)  # tokens, places, places in a blank
    inner = [[1, 2, 1, 2, 3, 1, 2], [1, 2, 3, 4], [1]]  # by hand
    begun = [[START, 16, START, 17, 18, START, 19], [START, 20, 21, 22], [START]]
    seen, (i, j) = np.zeros((3, S + T, S + T), bool), np.indices((S + T, S + T))
    for row, (n, m) in enumerate(zip(SOURCES, LENGTHS, strict=True)):
        rows[0, row, : n + m] = [*batch["source"][row, :n], *begun[row]]
        rows[1, row, : n + m] = [*range(n), *batch["blanks"][row, :m]]
        rows[2, row, n : n + m] = inner[row]
        seen[row] = ((j <= i) | (j < n)) & (j < n + m)
    own, places, blank = map(torch.tensor, rows)
    embedded = model.transformer.wte(own) + tables[0][places] + tables[1][blank]
    shown = torch.tensor(np.where(seen, 0.0, torch.finfo(torch.float64).min))[:, None]
    scores = model(inputs_embeds=embedded, attention_mask=shown, use_cache=False).logits
    at = np.minimum(SOURCES[:, None] + np.arange(T), S + T - 1)
    theirs = torch.log_softmax(scores, -1)[np.arange(3)[:, None], at]
    valid = np.arange(T) < LENGTHS[:, None]
    targets = torch.tensor(batch["targets"], dtype=torch.long)
    loss = -torch.gather(theirs, 2, targets[..., None])[..., 0][torch.tensor(valid)].sum()
    loss.backward()

    def in_our_tree(tree: Any, places: Any, inner: Any) -> Any:
        embed = {"tokens": tree["embed"]["tokens"], "places": {"table": places.numpy()}}
        embed["inner"] = {"table": inner.numpy()}
        return {"decoder": {"embed": embed, "stack": tree["stack"], "norm": tree["norm"]}}

    weights = peers.in_our_tree(model, lambda p: p.detach().numpy())
    params = in_our_tree(weights, *(x.detach() for x in tables))
    grads = peers.in_our_tree(model, lambda p: (p.grad if p.grad is not None else 0 * p).detach())
    expected = in_our_tree(grads, *(x.grad for x in tables))
    theirs = theirs.detach().numpy()

    def run() -> np.ndarray:
        log_probs.clear_cache()
        with tiny.in_double():
            net = glm.build(dataclasses.replace(SIZES, dtype=jnp.float32), None, VOCAB)
            return np.asarray(log_probs(net, params, batch))

    assert np.abs(run() - theirs)[valid].max() < 1e-10
    with tiny.in_double():
        net = glm.build(dataclasses.replace(SIZES, dtype=jnp.float32), None, VOCAB)

        @jax.jit
        def gradients(params: Any) -> Any:
            ctx = objectives.Pass(jax.random.key(0))

            def total(params: Any) -> jax.Array:
                found, _ = objectives.forward(net, params, batch, (TERM,), ctx)
                return found["seq2seq"]["loss"][0]

            return jax.grad(total)(params)

        found = jax.device_get(gradients(params))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.abs(a - b).max() < 1e-10 * max(1, np.abs(b).max())
    with monkeypatch.context() as patch:
        show_all(patch)
        assert np.abs(run() - theirs)[valid].max() > 0.1
    params["decoder"]["embed"]["inner"]["table"] *= 0  # without the second position
    assert np.abs(run() - theirs)[valid].max() > 0.1
    log_probs.clear_cache()
