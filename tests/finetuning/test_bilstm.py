"""A BiLSTM between net and head: against PyTorch, on padded rows; trained, evaluated, refused."""

import json
from typing import Any

import numpy as np
import pytest
import tiny
from test_finetune import config, records

from scalelab import finetune
from scalelab.finetuning import reopen, warm_start
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import compiled
from scalelab.interop import exporting
from scalelab.runs.pretrained import load_trained
from scalelab.tasks.task import Splits, load_task

WIDTH = 6
GATES = "ifgo"


@pytest.fixture
def prepare(wikitext, cache_dir, tmp_path):
    """prepare(system, **fields) -> TaskRun of RTE with a BiLSTM."""

    def make(system: str, **fields: Any) -> TaskRun:
        folder = tiny.write_run(tmp_path / system, system, wikitext, cache_dir)
        task, start = load_task("rte"), warm_start.open_start(str(folder))
        splits = Splits(records(task, 24, 0), {"dev": records(task, 8, 1)}, {})
        chosen = config(cache_dir, **{"head__lstm_width": WIDTH} | fields)
        return TaskRun(task, splits, start, chosen, tmp_path / "task")

    return make


@pytest.mark.parity
def test_it_is_pytorchs_lstm(prepare) -> None:
    """The last states of both directions, on rows of several lengths; the rest is the head."""
    torch = pytest.importorskip("torch")
    run = prepare("bert_ltr")
    params, batch = run.first_params(0), run.train.gather(np.arange(8), 32)
    lengths = batch["lengths"]
    assert len(set(lengths.tolist())) > 2 and lengths.max() < 32
    hidden, _ = run.learner.net.body.apply({"params": params["body"]}, batch, train=False)
    peer = torch.nn.LSTM(hidden.shape[-1], WIDTH, batch_first=True, bidirectional=True)
    for name, suffix in (("forward_rnn", "l0"), ("backward_rnn", "l0_reverse")):
        own = params["head"]["lstm"][name]["cell"]
        for kind, source, part in (
            ("weight_ih", "i", "kernel"), ("weight_hh", "h", "kernel"), ("bias_hh", "h", "bias"),
        ):  # fmt: skip
            gates = [torch.tensor(np.asarray(own[source + gate][part]).T) for gate in GATES]
            getattr(peer, f"{kind}_{suffix}").data = torch.cat(gates)
        getattr(peer, f"bias_ih_{suffix}").data.zero_()

    def expected(lengths: Any) -> np.ndarray:
        pack = torch.nn.utils.rnn.pack_padded_sequence
        rows = pack(torch.tensor(np.asarray(hidden)), torch.tensor(lengths), True, False)
        with torch.no_grad():
            _, (last, _) = peer(rows)
        head = params["head"]
        vectors = np.concatenate(list(last.numpy()), axis=-1)
        dense = np.tanh(vectors @ head["dense"]["kernel"] + head["dense"]["bias"])
        return np.asarray(dense @ head["out"]["kernel"] + head["out"]["bias"])

    program = compiled(run.learner, run.mesh)
    found = np.asarray(program.predict(*program.place(params), batch))
    np.testing.assert_allclose(found, expected(lengths), atol=1e-6)
    assert np.abs(found - expected(np.full_like(lengths, 32))).max() > 1e-4  # padding is read
    wrong = batch | {"tokens": np.where(np.arange(32) < lengths[:, None], batch["tokens"], 7)}
    np.testing.assert_array_equal(program.predict(*program.place(params), wrong), found)


def test_it_is_trained_and_stays_in_its_run(prepare, tmp_path) -> None:
    run = prepare("bert")
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
    assert outputs.shape == (24, 2) and np.isfinite(outputs).all()
    assert json.loads((run.folder(0) / "config.json").read_text())["head"]["lstm_width"] == WIDTH
    with pytest.raises(ValueError, match="BiLSTM"):
        exporting.run(run.folder(0), tmp_path / "out")


def test_it_does_not_go_with_a_mixture(prepare) -> None:
    with pytest.raises(ValueError, match="feature_mix does not go with config.head.lstm_width"):
        prepare("bert", feature_layers=1, feature_mix="weighted")
