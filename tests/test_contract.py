"""What every system owes: each file of scalelab/systems at a tiny shape, no list to edit.

The tests marked `short` are quick for every system, the others where the system is declared
`whole`; all of all run with the slow tests.

Golden files are written anew by

  python -m pytest tests/test_contract.py -k golden --update-golden
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import declared
import flax.linen as nn
import guests
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import subjects
import tiny

from scalelab import step
from scalelab.config import pretraining as config_lib
from scalelab.config.fields import flatten
from scalelab.nn import axes
from scalelab.nn.heads import token_logits
from scalelab.objectives import xent
from scalelab.optim import adamw
from scalelab.resources import flops
from scalelab.training.checkpoint import Checkpoints


def short(test: Any) -> Any:
    """Marks what is quick for every system."""
    test.is_short = True
    return test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_short = getattr(metafunc.function, "is_short", False)
    names = tiny.SYSTEMS if is_short else declared.marked(tiny.SYSTEMS)
    if "golden" not in metafunc.function.__name__:
        names = [*names, *(guests.NAMES if is_short else declared.marked(guests.NAMES))]
    metafunc.parametrize("subject", names, indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="module")
def systems_of_tests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        guests.add(patch)
        yield


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> subjects.Subject:
    return subjects.get(request.param)


def without_rows(batch: dict[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
    """The batch with some examples turned into padding: length 0, no tokens."""
    batch = {name: values.copy() for name, values in batch.items()}
    for name in batch.keys() - {"examples"}:
        batch[name][rows] = 0
    return batch


def crosses_examples(subject: subjects.Subject) -> bool:
    """Whether its loss compares the examples of a batch."""
    return any(term.crosses_examples for term in subject.parts.terms)


def assert_trees_close(ours: Any, theirs: Any, *, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=adamw.parameter_name(path))


# --- Learning ------------------------------------------------------------------------------------


@short
def test_the_first_losses_are_those_of_guesses_and_add_up(subject: subjects.Subject) -> None:
    metrics, _ = subject.first_step(subject.batch(1))
    means = {}
    for term in subject.parts.terms:
        total, weight = metrics[f"{term.name}_loss"]
        means[term.name] = total / weight
    assert means == pytest.approx(subject.expected.first_losses, rel=0.01)
    total = sum(term.weight * means[term.name] for term in subject.parts.terms)
    assert metrics["loss"][0] == pytest.approx(total, rel=1e-6)
    assert {"grad_norm", "finite"} <= metrics.keys()


@short
def test_every_parameter_gets_a_gradient_in_every_layer(subject: subjects.Subject) -> None:
    now, batch = subject.state(), subject.batch(1)
    for _ in range(50):  # away from the start, where weights near 0 make some gradients tiny
        now, _ = subject.run(now, batch, jnp.float32(1e-2))
    gradients = jax.device_get(now.opt_state[0])
    largest = max(np.abs(g).max() for g in jax.tree.leaves(gradients))
    if subject.expected.counted:
        assert largest == 0
        assert_trees_close(now.params, subject.fresh.params, rtol=0, atol=0)
        return
    names = axes.names_by_path(subject.parts.abstract_parameters())
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        name = adamw.parameter_name(path)
        layers = gradient if names[name][0] in (axes.LAYERS, axes.GROUPS) else gradient[None]
        sizes = np.abs(layers).reshape(len(layers), -1).max(axis=1)
        if name.endswith("/key/bias"):
            # The softmax does not see what adds the same to every score of a query.
            assert (sizes < 1e-7 * largest).all(), f"{name}: {sizes}"
        else:
            assert (sizes > 1e-6 * largest).all(), f"{name}: {sizes}"


def test_overfits_one_batch(subject: subjects.Subject) -> None:
    now, batch = subject.state(), subject.batch(1)
    weights = None
    if subject.expected.static:
        pytest.skip("pairs of tokens are not learned by heart")
    for _ in range(subject.expected.overfit_steps):
        # At step 0 again and again: the same masks, the same dropout.
        now = now.replace(step=jnp.zeros((), jnp.int32))
        now, metrics = subject.run(now, batch, jnp.float32(1e-2))
        weights = weights or jax.device_get({k: w for k, (_, w) in metrics.items()})
    for objective in subject.parts.terms:
        name = f"{objective.name}_loss"
        assert metrics[name][0] / weights[name] < 0.2, name


# --- What must not move the loss -----------------------------------------------------------------


@short
def test_tokens_in_the_padding_move_nothing(subject: subjects.Subject) -> None:
    batch = tiny.batch(subject.module, 1)
    padding = np.arange(batch["tokens"].shape[1]) >= batch["lengths"][:, None]
    noise = np.random.default_rng(0).integers(0, tiny.VOCAB, padding.shape)
    assert padding.any()
    clean = subject.first_step(subject.batch(1))
    noisy = subject.first_step(
        subject.batch(1, tokens=np.where(padding, noise, batch["tokens"]).astype(np.int32))
    )
    assert_trees_close(noisy, clean)


def test_more_padding_moves_nothing(subject: subjects.Subject) -> None:
    parts = tiny.parts(subject.name, model__dropout_rate=0.0)
    batch = tiny.batch(subject.module, 1)
    longer = {n: np.pad(x, ((0, 0), (0, 9 * (x.ndim > 1)))[: x.ndim]) for n, x in batch.items()}
    long_parts = tiny.parts(subject.name, model__dropout_rate=0.0, model__max_len=tiny.LENGTH + 9)
    fewer, wanted = subject.fresh.params, nn.unbox(long_parts.abstract_parameters())
    more = jax.tree.map(  # tables of positions grow
        lambda a, b: np.pad(a, [(0, n - m) for m, n in zip(a.shape, b.shape, strict=True)]),
        fewer,
        wanted,
    )
    evaluate = [
        jax.jit(step.make_eval_step(p.net, p.terms))(params, b, jax.random.key(0))
        for p, params, b in ((parts, fewer, batch), (long_parts, more, longer))
    ]
    assert_trees_close(*(jax.device_get(metrics) for metrics, _ in evaluate))


@short
def test_splitting_a_batch_moves_neither_losses_nor_gradients(subject: subjects.Subject) -> None:
    """Dropout and masks go with the example: two halves, filled up with padding, make it whole.

    But for a loss that compares the examples of a batch, which has to say so.
    """
    batch, half = tiny.batch(subject.module, 1), tiny.BATCH // 2
    whole, gradients = subject.first_step(subject.batch(1))
    halves = slice(0, half), slice(half, None)
    parts = [subject.first_step(subject.put(without_rows(batch, rows))) for rows in halves]
    for term in subject.parts.terms:
        name = f"{term.name}_loss"
        (first, a), (second, b) = parts[0][0][name], parts[1][0][name]
        assert a == b == whole[name][1] / 2
        is_sum = first + second == pytest.approx(whole[name][0], rel=1e-5)
        assert is_sum == (not term.crosses_examples)
    if not crosses_examples(subject):
        means = jax.tree.map(lambda a, b: (a + b) / 2, parts[0][1], parts[1][1])
        assert_trees_close(means, gradients)


def test_the_order_of_the_examples_moves_nothing(subject: subjects.Subject) -> None:
    """What is drawn for an example belongs to its number, not to its row."""
    batch = tiny.batch(subject.module, 1)
    order = np.random.default_rng(0).permutation(tiny.BATCH)
    shuffled = {name: values[order] for name, values in batch.items()}
    ours = subject.first_step(subject.put(shuffled))
    assert_trees_close(ours, subject.first_step(subject.batch(1)))


def test_dropout_differs_between_examples_and_steps(subject: subjects.Subject) -> None:
    """Else the tests above would hold for dropout that is never drawn."""
    if subject.expected.counted:
        pytest.skip("counts have no dropout")
    batch = tiny.batch(subject.module, 1)
    first, _ = subject.first_step(subject.batch(1))
    others = subject.batch(1, examples=batch["examples"] + tiny.BATCH)
    other_examples, _ = subject.first_step(others)
    later = subject.state().replace(step=jnp.ones((), jnp.int32))
    _, metrics = subject.run(later, subject.batch(1), subjects.RATE)
    numbers = [(m["loss"], m["grad_norm"]) for m in (first, other_examples, metrics)]
    assert len({str(jax.device_get(pair)) for pair in numbers}) == 3


# --- Who sees whom -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [1, 7, tiny.LENGTH - 1])
def test_looks_ahead_only_if_bidirectional(subject: subjects.Subject, place: int) -> None:
    batch = tiny.batch(subject.module, 1)
    batch["lengths"][:] = length = batch["tokens"].shape[1]
    place, changed = min(place, length - 1), batch["tokens"].copy()
    changed[:, place] = (changed[:, place] + 1) % tiny.VOCAB
    before, after = subject.hidden(batch), subject.hidden(batch | {"tokens": changed})
    same = (before == after).all(axis=(0, 2))
    if subject.expected.static:
        assert np.flatnonzero(~same).tolist() == [place]
        return
    assert not same[place:].any()
    assert same[:place].all() == (subject.module.SEES != "both")


def test_examples_do_not_see_each_other(subject: subjects.Subject) -> None:
    batch = tiny.batch(subject.module, 1)
    changed = batch["tokens"].copy()
    changed[3] = (changed[3] + 1) % tiny.VOCAB
    same = (subject.hidden(batch) == subject.hidden(batch | {"tokens": changed})).all(axis=(1, 2))
    assert same.tolist() == [row != 3 for row in range(tiny.BATCH)]


def test_decoding_with_a_cache_equals_the_forward_pass(subject: subjects.Subject) -> None:
    if subject.module.SEES != "left" or not hasattr(subject.parts.net, "init_cache"):
        pytest.skip("decoders only")
    net, params = subject.parts.net, {"params": subject.fresh.params}
    tokens = tiny.batch(subject.module, 1)["tokens"]
    prompts = np.array([5, 3, 1, 5, 2, 4, 5, 1], np.int32)  # lengths; they are given at once
    rows = np.arange(tiny.BATCH)
    examples = {"examples": rows}

    @jax.jit
    def decode(cache: Any, tokens: jax.Array, lengths: jax.Array) -> tuple[jax.Array, Any]:
        batch = examples | {"tokens": tokens, "lengths": lengths}
        hidden, cache = net.apply(params, batch, train=False, cache=cache)
        return net.apply(params, hidden, method=token_logits), cache

    full = np.full(tiny.BATCH, tiny.LENGTH, np.int32)
    hidden = subject.hidden(examples | {"tokens": jnp.where(tokens, tokens, 9), "lengths": full})
    tokens = np.where(tokens, tokens, 9)
    expected = net.apply(params, hidden, method=token_logits)
    logits, cache = decode(net.init_cache(tiny.BATCH, tiny.LENGTH), tokens[:, :5], prompts)
    np.testing.assert_allclose(
        logits[rows, prompts - 1], expected[rows, prompts - 1], rtol=1e-4, atol=1e-5
    )
    ones = np.ones(tiny.BATCH, np.int32)
    for k in range(tiny.LENGTH - prompts.max()):
        logits, cache = decode(cache, tokens[rows, prompts + k][:, None], ones)
        np.testing.assert_allclose(logits[:, 0], expected[rows, prompts + k], rtol=1e-4, atol=1e-5)


# --- Continuing ----------------------------------------------------------------------------------


def test_resuming_equals_no_interruption_bit_for_bit(subject, tmp_path) -> None:
    straight = subject.state()
    for t in range(5):
        straight, last = subject.run(straight, subject.batch(t), subjects.RATE)
    stopped = subject.state()
    checkpoints = Checkpoints(tmp_path, num_last=2)
    for t in range(3):
        stopped, _ = subject.run(stopped, subject.batch(t), subjects.RATE)
    checkpoints.save(stopped, {"note": "here"})
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path, num_last=2)
    resumed, meta = checkpoints.restore(subject.state())
    checkpoints.close()
    assert meta["note"] == "here" and int(resumed.step) == 3
    for t in range(3, 5):
        resumed, again = subject.run(resumed, subject.batch(t), subjects.RATE)
    assert_trees_close(resumed, straight, rtol=0, atol=0)
    assert_trees_close(again, last, rtol=0, atol=0)


# --- Names ---------------------------------------------------------------------------------------


@short
def test_every_axis_of_every_parameter_has_a_known_name(subject: subjects.Subject) -> None:
    boxed = subject.parts.abstract_parameters()
    leaves = jax.tree_util.tree_leaves_with_path(
        boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
    )
    layered = {axes.LAYERS, axes.GROUPS} & {leaf.names[0] for _, leaf in leaves}
    assert bool(layered) != subject.expected.static
    layers = subject.parts.config.model.num_layers
    deeper = tiny.parts(subject.name, model__num_layers=layers + 1).abstract_parameters()
    for (path, leaf), other in zip(leaves, jax.tree.leaves(nn.unbox(deeper)), strict=True):
        name = adamw.parameter_name(path)
        assert isinstance(leaf, nn.LogicallyPartitioned), f"{name} has no axis names"
        assert len(leaf.names) == leaf.value.ndim, name
        assert set(leaf.names) <= axes.ALL, f"{name}: {leaf.names}"
        sizes = {axes.LAYERS: {layers}, axes.GROUPS: {*range(1, layers + 1)}}
        assert leaf.value.shape[0] in sizes.get(leaf.names[0], {leaf.value.shape[0]}), name
        assert not {axes.LAYERS, axes.GROUPS} & {*leaf.names[1:]}
        # Whatever its path: one more layer makes it longer, or its groups are shared.
        assert (leaf.names[0] == axes.LAYERS) == (leaf.value.shape != other.shape), name
        assert leaf.value.dtype == jnp.float32


@short
def test_departures_are_fields_in_which_it_differs_from_the_control(subject) -> None:
    control = flatten(tiny.config_module("base").get_config().to_dict())
    for departure in subject.module.DEPARTURES:
        assert departure.field in control
        assert departure.value != control[departure.field], departure.field
        assert departure.source
    resolved = flatten(tiny.values(f"system={subject.name}"))
    differing = {k for k in control if control[k] != resolved[k]} - {"system"}
    assert differing == {d.field for d in subject.module.DEPARTURES}


# --- Golden files --------------------------------------------------------------------------------


def losses_of(subject: subjects.Subject, run: Any) -> list[float]:
    """Of the first three steps."""
    now, losses = subject.state(), []
    for t in range(3):
        now, metrics = run(now, subject.batch(t), subjects.RATE)
        losses.append(float(metrics["loss"][0]))
    return losses


def golden(subject: subjects.Subject) -> dict[str, Any]:
    """What must not change unnoticed: config, parameters and FLOPs at 2x128x2, three tiny steps."""
    config = config_lib.resolve(tiny.values(f"system={subject.name},shape=2x128x2"))
    parts = tiny.parts_of(config, subject.module)
    params = nn.unbox(parts.abstract_parameters(config.short.max_len))
    table = {
        adamw.parameter_name(path): "x".join(map(str, leaf.shape))
        + " decayed" * adamw.is_decayed(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    costs = flops.count_phases(params, parts.net, parts.terms, config)
    phases = [{k: v for k, v in dataclasses.asdict(cost).items() if v or k != "forward_only"}
              for cost in costs]  # fmt: skip
    terms = dict(zip(("short", "long"), phases, strict=False))  # a system may have one phase
    return {
        "config": config_lib.science(config), "num_parameters": flops.count_parameters(params),
        "parameters": table, "flops": terms, "tiny_losses": losses_of(subject, subject.run),
    }  # fmt: skip


@short
def test_golden(subject: subjects.Subject, update_golden: bool) -> None:
    path = tiny.ROOT / f"tests/golden/{subject.name}.json"
    ours = golden(subject)
    if update_golden:
        path.write_text(json.dumps(ours, indent=1) + "\n")
    theirs = json.loads(path.read_text())
    assert ours.pop("tiny_losses") == pytest.approx(theirs.pop("tiny_losses"), rel=1e-5)
    assert json.loads(json.dumps(ours)) == theirs


@pytest.mark.slow
def test_the_head_in_blocks_has_the_golden_losses(subject, monkeypatch) -> None:
    """Chunks of positions and blocks of the table's rows, as V = 30,000 has them, at V = 97."""
    blocks, terms = [], xent._chunk_terms

    def seen(*arguments: Any) -> Any:
        blocks.append(len(arguments[1]))
        return terms(*arguments)

    monkeypatch.setattr(xent, "_chunk_terms", seen)
    monkeypatch.setattr(xent, "MOST_ROWS", {"cpu": 40})
    monkeypatch.setattr(xent, "CHUNK_SCORES", {"cpu": 500})
    run = subject.compile(subject.parts)
    assert set(blocks) == ({3} if subject.expected.one_softmax else set())
    golden = json.loads((tiny.ROOT / f"tests/golden/{subject.name}.json").read_text())
    assert losses_of(subject, run) == pytest.approx(golden["tiny_losses"], rel=1e-5)
