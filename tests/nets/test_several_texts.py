"""Several texts in a row: each has the states, losses and gradients that it has alone."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.nets import encdec
from scalelab.nets.encdec import split_texts
from scalelab.systems import palm

VOCAB, S, T = 61, 15, 13
SIZES = systems.Sizes(2, 12, 2, ffn_width=20, max_len=16, dropout_rate=0.0)
# (source, target) of each text of a row; the second row has padding, the third one text alone.
LENGTHS = [[(6, 5), (3, 4), (6, 4)], [(1, 3), (4, 1), (2, 2)], [(7, 6), (0, 0), (0, 0)]]
OPTIONS: dict[str, dict[str, Any]] = {"prefix_lm causal": {"mask": "causal"}}
NAMES = [
    "t5", "palm", "prefix_lm", "prefix_lm causal",
    *(pytest.param(name, marks=pytest.mark.ci) for name in ("bart", "transformer")),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("mass", "pegasus")),
]  # fmt: skip


def draw_batches() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Rows of three texts, and the same texts one in a row."""
    rng = np.random.default_rng(0)
    flat = [pair for row in LENGTHS for pair in row]
    alone = {name: np.zeros((len(flat), n), np.int32) for name, n in (("source", S), ("tokens", T))}
    packed = {name: np.zeros((len(LENGTHS), x.shape[1]), np.int32) for name, x in alone.items()}
    lengths = np.array(LENGTHS, np.int32)
    ends = np.cumsum(lengths, axis=1, dtype=np.int32)
    for side, name in enumerate(("source", "tokens")):
        names = "source_lengths" if name == "source" else "lengths"
        packed[names], alone[names] = ends[:, -1, side], lengths[..., side].reshape(-1)
        for k, n in enumerate(alone[names]):
            row, text = divmod(k, 3)
            drawn = rng.integers(2, VOCAB, n)
            alone[name][k, :n] = drawn
            packed[name][row, ends[row, text, side] - n : ends[row, text, side]] = drawn
    packed |= {"text_ends": ends, "examples": np.arange(3, dtype=np.int32)}
    return packed, alone | {"examples": np.arange(len(flat), dtype=np.int32)}


PACKED, ALONE = draw_batches()


@functools.cache
def compiled(name: str) -> tuple[Any, Any, Any]:
    """A system with large weights: its terms, its parameters and its pass, all in float64."""
    module = systems.load(name.split()[0])
    own = module.Options(**OPTIONS.get(name, {})) if hasattr(module, "Options") else None
    net = module.build(dataclasses.replace(SIZES, dtype=jnp.float32), own, VOCAB)
    terms = tiny.terms(module, "copy" if name == "palm" else "seq2seq", size=VOCAB)
    shapes = objectives.abstract_variables(net, terms, max_len=16)["params"]
    rng = np.random.default_rng(1)

    def drawn(path: Any, leaf: Any) -> np.ndarray:
        return 0.5 * rng.standard_normal(leaf.shape) + (path[-1].key == "scale")

    def forward(model: Any, batch: Any) -> tuple[Any, Any]:
        ctx = objectives.Pass(jax.random.key(0))
        (pairs,) = objectives.apply_objectives(model, batch, terms, ctx).values()
        total, weight = pairs["loss"]
        return total, (ctx.hidden(model, batch)[..., : SIZES.width], weight)

    def loss(params: Any, batch: Any) -> tuple[Any, Any]:
        return net.apply({"params": params}, batch, method=forward)

    params = jax.tree_util.tree_map_with_path(drawn, shapes)
    return terms, params, jax.jit(jax.value_and_grad(loss, has_aux=True))


def run(name: str, batch: Any, change: Callable[[Any], Any] = lambda batch: batch) -> Any:
    """Hidden states of the target, the loss and the gradients; `change` spoils a prepared batch."""
    with tiny.in_double():
        terms, params, loss = compiled(name)
        prepared = change(tiny.prepare(batch, terms, jax.random.key(0)))
        (total, (hidden, weight)), grads = loss(params, prepared)
        return jax.device_get((hidden, total, weight, jax.tree.leaves(grads)))


def rows_alone(hidden: np.ndarray) -> np.ndarray:
    """The states of all texts, of a batch that has each in a row of its own."""
    return np.concatenate([hidden[k, :n] for k, n in enumerate(ALONE["lengths"])])


def apart(found: Any, expected: Any) -> float:
    """The largest error of states, loss and gradients, in units of the largest value of each."""
    real = np.arange(T) < PACKED["lengths"][:, None]
    both = [(found[0][real], rows_alone(expected[0])), (found[1], expected[1])]
    both += zip(found[3], expected[3], strict=True)
    assert found[2] == expected[2] == PACKED["lengths"].sum()
    largest = max(np.abs(x).max() for x in expected[3])
    return max(float(np.abs(a - b).max()) / max(np.abs(b).max(), 1e-3 * largest) for a, b in both)


WRONG: dict[str, Callable[[Any], Any]] = {
    "one text": lambda batch: {name: x for name, x in batch.items() if name != "text_ends"},
    "another place": lambda batch: (
        batch | {"text_ends": batch["text_ends"] + [[1, 1], [0, 0], [0, 0]]}
    ),
    "no start": lambda batch: batch | {"tokens": np.roll(batch["targets"], 1, 1)},
}


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_a_row_are_as_alone(name: str) -> None:
    expected = run(name, ALONE)
    assert apart(run(name, PACKED), expected) < 1e-10
    for change in WRONG.values():
        assert apart(run(name, PACKED, change), expected) > 1e-3


@pytest.mark.parametrize(
    ("name", "dropped"), [("t5", "source_bounds"), ("t5", "bounds"), ("palm", "source_bounds")]
)
def test_no_text_sees_another(name: str, dropped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In target, source and pointer."""

    def without(batch: Any) -> Any:
        read, batch = split_texts(batch)
        return read, {name: x for name, x in batch.items() if name != dropped}

    expected = run(name, ALONE)
    compiled.cache_clear()
    monkeypatch.setattr(palm if name == "palm" else encdec, "split_texts", without)
    assert apart(run(name, PACKED), expected) > 1e-3
    compiled.cache_clear()


@pytest.mark.ci
@pytest.mark.parity
def test_texts_of_a_row_are_those_of_transformers() -> None:
    """T5's class reads the texts one by one."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import peers
    import sides

    model = peers.make("t5", (3, 24, 2), 16)
    terms = tiny.terms(systems.load("t5"), "seq2seq", size=VOCAB)
    with tiny.in_double():
        net = sides.build("t5", (3, 24, 2), 16, dtype=jnp.float32)
        batch, params = tiny.prepare(PACKED, terms, jax.random.key(0)), peers.weights(model)
        run = jax.jit(lambda p, b: net.apply({"params": p}, b, train=False)[0])
        found = jax.device_get(run(params, batch))
    alone, parts = tiny.prepare(ALONE, terms, jax.random.key(0)), []
    for k, (n, m) in enumerate(zip(alone["source_lengths"], alone["lengths"], strict=True)):
        source, target = alone["source"][k : k + 1, :n], alone["tokens"][k : k + 1, :m]
        given = {"input_ids": source, "decoder_input_ids": target}
        given = {name: torch.tensor(x, dtype=torch.long) for name, x in given.items()}
        with torch.no_grad(), peers.PEERS["t5"].exact():
            states = model(**given, output_hidden_states=True) if n else None
        parts += [] if states is None else [states.decoder_hidden_states[-1][0].numpy()]
    expected = np.concatenate(parts)
    apart = np.abs(found[np.arange(T) < PACKED["lengths"][:, None]] - expected).max()
    assert apart < 1e-10 * np.abs(expected).max()


PREFIX = {
    "data__format": "denoising", "format_options__style": "prefix",
    "format_options__across_documents": True,
}  # fmt: skip


@pytest.mark.parametrize("name", ["rnnsearch", "glm", "gpt2"])
def test_what_reads_one_text_refuses_several(name: str) -> None:
    """In the abstract, before a run has a folder."""
    objective = "clm" if name == "gpt2" else "seq2seq"
    with pytest.raises(ValueError, match="one text.*across_documents=False"):
        tiny.parts(name, objective=objective, **PREFIX).abstract_parameters()
    tiny.parts(name, objective=objective, **PREFIX | {"format_options__across_documents": False})


def test_the_format_gives_the_ends_to_the_model() -> None:
    made = tiny.parts("t5", **PREFIX)
    assert "text_ends" in {array.name for array in objectives.needed_arrays(made.terms)}
    made.abstract_parameters()
    made = tiny.parts("t5", **PREFIX | {"format_options__across_documents": False})
    assert "text_ends" not in {array.name for array in (*made.arrays, *made.terms[0].arrays)}
