"""The gated convolutional model: torch.nn.Conv1d, its receptive field, decoding from its cache."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import systems
from scalelab.nn.masks import Context, Mask
from scalelab.systems import gcnn

B, D, L = 3, 4, 3
LENGTH = 24
ROWS = np.random.default_rng(0).integers(1, tiny.VOCAB, (B, LENGTH))
CASES = [(2, 1), (3, 2), (4, 1), (2, 3), (1, 2)]  # taps, dilation


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make(num_taps: int, dilation: int) -> tuple[Any, Any]:
    sizes = systems.Sizes(1, D, L, 4 * D, LENGTH, 0.0, dtype=jnp.float64)
    net = gcnn.build(sizes, gcnn.Options(num_taps, dilation), tiny.VOCAB)
    return net, tiny.draw(net, tiny.terms(gcnn, "clm"))


def batch_of(rows: np.ndarray, lengths: Any = None) -> dict[str, Any]:
    size, length = rows.shape
    lengths = np.full(size, length) if lengths is None else lengths
    return {"tokens": rows, "lengths": lengths, "examples": np.arange(size)}


@pytest.mark.parametrize(("num_taps", "dilation"), CASES)
def test_the_receptive_field_is_that_of_the_dilations(num_taps: int, dilation: int) -> None:
    """1 + (K - 1) (2^L - 1) for dilation 2, by the places where the Jacobian is not 0."""
    net, params = make(num_taps, dilation)
    places = jnp.arange(LENGTH)[None]
    ctx = Context(Mask(lengths=jnp.array([LENGTH]), causal=True), places, jnp.zeros(1, int))

    def last(x: jax.Array) -> jax.Array:
        return net.stack.apply({"params": params["stack"]}, x, ctx, None)[0][0, -1].sum()

    x = np.random.default_rng(1).normal(size=(1, LENGTH, D))
    moved = np.abs(np.asarray(jax.grad(last)(x))[0]).max(axis=-1) > 0
    field = 1 + (num_taps - 1) * sum(dilation**n for n in range(L))
    if dilation == 2:
        assert field == 1 + (num_taps - 1) * (2**L - 1)
    assert moved.argmax() == LENGTH - min(field, LENGTH)
    assert moved.all() or num_taps <= dilation or field < LENGTH


@pytest.mark.parametrize(("num_taps", "dilation"), CASES)
def test_decoding_from_the_last_inputs_is_the_whole_pass(num_taps: int, dilation: int) -> None:
    net, params = make(num_taps, dilation)
    step = jax.jit(
        lambda batch, cache: net.apply({"params": params}, batch, train=False, cache=cache)
    )
    whole, _ = step(batch_of(ROWS), None)
    lengths, rows = np.array([4, 1, 3]), np.arange(B)
    hidden, cache = step(batch_of(ROWS[:, :4], lengths), net.init_cache(B, LENGTH))
    assert cache.layers.shape == (L, B, (num_taps - 1) * dilation ** (L - 1), D)
    np.testing.assert_allclose(hidden[rows, lengths - 1], whole[rows, lengths - 1], atol=1e-12)
    for k in range(LENGTH - 4):
        hidden, cache = step(batch_of(ROWS[rows, lengths + k][:, None]), cache)
        np.testing.assert_allclose(hidden[:, 0], whole[rows, lengths + k], atol=1e-12)


def apart(num_taps: int, dilation: int, theirs: int) -> tuple[float, float]:
    """Differences from Conv1d, padded on the left, in states and in gradients."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    net, params = make(num_taps, dilation)
    layer, table = params["stack"]["layer"]["taps"], params["embed"]["tokens"]["table"]
    x = torch.tensor(np.asarray(table)[ROWS]).transpose(1, 2)
    modules = []
    for n in range(L):
        conv = torch.nn.Conv1d(D, 2 * D, num_taps, dilation=theirs**n, dtype=torch.float64)
        kernel = np.asarray(layer["kernel"][n]).reshape(num_taps, D, 2 * D)[::-1]
        conv.weight.data.copy_(torch.tensor(kernel.transpose(2, 1, 0).copy()))
        conv.bias.data.copy_(torch.tensor(np.asarray(layer["bias"][n])))
        padded = torch.nn.functional.pad(x, ((num_taps - 1) * theirs**n, 0))
        x = (x + torch.nn.functional.glu(conv(padded), dim=1)) * 0.5**0.5
        modules.append(conv)
    states = x.transpose(1, 2)
    (states**2 * torch.arange(D)).sum().backward()

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        hidden, _ = net.apply({"params": params}, batch_of(ROWS), train=False)
        return (hidden**2 * jnp.arange(D)).sum(), hidden

    gradients, hidden = jax.jit(jax.grad(loss, has_aux=True))(params)
    found, worst = gradients["stack"]["layer"]["taps"], 0.0
    for n, conv in enumerate(modules):
        kernel = np.asarray(found["kernel"][n]).reshape(num_taps, D, 2 * D)[::-1]
        wanted = conv.weight.grad.numpy()
        worst = max(worst, np.abs(kernel.transpose(2, 1, 0) - wanted).max() / np.abs(wanted).max())
        wanted = conv.bias.grad.numpy()
        worst = max(worst, np.abs(found["bias"][n] - wanted).max() / np.abs(wanted).max())
    return float(np.abs(hidden - states.detach().numpy()).max()), float(worst)


@pytest.mark.parity
@pytest.mark.parametrize(("num_taps", "dilation"), CASES)
def test_states_and_gradients_are_torchs(num_taps: int, dilation: int) -> None:
    assert max(apart(num_taps, dilation, dilation)) < 1e-10
    if num_taps > 1:
        assert min(apart(num_taps, dilation, dilation + 1)) > 1e-3


@pytest.mark.parametrize(("options", "message"), [
    (dict(num_taps=0), "system_options.num_taps = 0"),
    (dict(num_taps=10**6), "system_options.num_taps = 1000000 exceeds the model's positions"),
    (dict(dilation=1.5), "system_options.dilation"),
])  # fmt: skip
def test_options_without_a_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.parts("gcnn", **{f"system_options__{name}": x for name, x in options.items()})
