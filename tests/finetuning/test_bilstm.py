"""A BiLSTM between model and head: against PyTorch, on padded rows; trained, evaluated, refused."""

import functools
import json
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn
from test_finetune import one_bucket as one_bucket
from test_finetune import prepare as prepare

from scalelab import finetune
from scalelab.finetuning import reopen
from scalelab.finetuning.step import compiled
from scalelab.interop import exporting
from scalelab.nets.classifier import one_vector
from scalelab.nn.heads import BiLSTMHead
from scalelab.training.pretrained import load_trained

WIDTH = 6
GATES = "ifgo"


def last_state(cell: Any, row: np.ndarray) -> np.ndarray:
    """The state of an LSTM behind a row [T, F], by its equations."""
    state = memory = np.zeros(WIDTH)
    for x in row:
        sides = ((x, "i"), (state, "h"))
        scores = [sum(y @ cell[side + g]["kernel"] for y, side in sides) for g in GATES]
        scores = [y + cell[f"h{g}"]["bias"] for y, g in zip(scores, GATES, strict=True)]
        let_in, keep, let_out = (1 / (1 + np.exp(-scores[k])) for k in (0, 1, 3))
        memory = keep * memory + let_in * np.tanh(scores[2])
        state = let_out * np.tanh(memory)
    return state


def test_its_ends_are_the_last_states_of_both_directions() -> None:
    """Of the row read forwards and backwards by a loop; padding is not read."""
    rng, lengths = np.random.default_rng(0), np.array([7, 4, 1])
    hidden, net = rng.normal(size=(3, 7, 5)).astype(np.float32), BiLSTMHead(WIDTH, nn.Dense(2))
    made = jax.eval_shape(
        lambda key: net.init(key, hidden, lengths, method="read"), jax.random.key(0)
    )
    made = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), nn.unbox(made))
    states = net.apply(made, hidden, lengths, method="read")
    found = one_vector(states, {"lengths": lengths}, "ends", 1)
    cells = [made["params"]["lstm"][f"{name}_rnn"]["cell"] for name in ("forward", "backward")]
    expected = [np.concatenate([last_state(cells[0], row[:n]), last_state(cells[1], row[:n][::-1])])
                for row, n in zip(hidden, lengths, strict=True)]  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def pytorchs_lstm(head: Any, hidden: Any, lengths: Any) -> np.ndarray:
    """Scores of PyTorch's BiLSTM over states [B, T, E], and of the head's layers behind it."""
    torch = pytest.importorskip("torch")
    peer = torch.nn.LSTM(hidden.shape[-1], WIDTH, batch_first=True, bidirectional=True)
    for name, suffix in (("forward_rnn", "l0"), ("backward_rnn", "l0_reverse")):
        own = head["lstm"][name]["cell"]
        for kind, source, part in (
            ("weight_ih", "i", "kernel"), ("weight_hh", "h", "kernel"), ("bias_hh", "h", "bias"),
        ):  # fmt: skip
            gates = [torch.tensor(np.asarray(own[source + gate][part]).T) for gate in GATES]
            getattr(peer, f"{kind}_{suffix}").data = torch.cat(gates)
        getattr(peer, f"bias_ih_{suffix}").data.zero_()
    pack = torch.nn.utils.rnn.pack_padded_sequence
    hidden = torch.tensor(np.asarray(hidden, np.float32))
    rows = pack(hidden, torch.tensor(np.asarray(lengths)), True, False)
    with torch.no_grad():
        _, (last, _) = peer(rows)
    vectors = np.concatenate(list(last.numpy()), axis=-1)
    dense = np.tanh(vectors @ head["dense"]["kernel"] + head["dense"]["bias"])
    return np.asarray(dense @ head["out"]["kernel"] + head["out"]["bias"])


@pytest.mark.parity
def test_it_is_pytorchs_lstm(prepare) -> None:
    """The last states of both directions, on rows of several lengths; the rest is the head."""
    run = prepare("bert_ltr", "rte", head__lstm_width=WIDTH)
    params, batch = run.first_params(0), run.train.gather(np.arange(8), 32)
    lengths = batch["lengths"]
    assert len(set(lengths.tolist())) > 2 and lengths.max() < 32
    hidden, _ = run.learner.net.body.apply({"params": params["body"]}, batch, train=False)
    program = compiled(run.learner, run.mesh)
    found = np.asarray(program.predict(*program.place(params), batch))
    expected = functools.partial(pytorchs_lstm, params["head"], hidden)
    np.testing.assert_allclose(found, expected(lengths), atol=1e-6)
    assert np.abs(found - expected(np.full_like(lengths, 32))).max() > 1e-4  # padding is read
    wrong = batch | {"tokens": np.where(np.arange(32) < lengths[:, None], batch["tokens"], 7)}
    np.testing.assert_array_equal(program.predict(*program.place(params), wrong), found)


def test_it_is_trained_and_stays_in_its_run(prepare, tmp_path) -> None:
    run = prepare("bert", "rte", head__lstm_width=WIDTH)
    before = run.first_params(0)["head"]["lstm"]
    finetune.train([run], 0, run.workdir)
    after = load_trained(run.folder(0))["head"]["lstm"]
    for name in before:
        assert np.abs(after[name]["cell"]["hf"]["kernel"]).max() > 1e-3
        moved = after[name]["cell"]["ii"]["kernel"] - before[name]["cell"]["ii"]["kernel"]
        assert np.abs(moved).max() > 1e-3
    assert finetune.results.evaluate_again(run, 0) == run.result(0)["eval"]
    opened = reopen.load(run.folder(0))
    again = opened.prepare(run.splits.train, str(tmp_path / "cache"))
    outputs = again.predict_with(opened.params, again.train)
    assert outputs.shape == (36, 2) and np.isfinite(outputs).all()
    assert json.loads((run.folder(0) / "config.json").read_text())["head"]["lstm_width"] == WIDTH
    with pytest.raises(ValueError, match="BiLSTM"):
        exporting.run(run.folder(0), tmp_path / "out")
