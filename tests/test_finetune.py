"""Fine-tuning at a tiny shape: inputs, the loss, kills, what is learned."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import signal
from collections.abc import Callable
from typing import Any

import fine_tuned
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab import finetune
from scalelab.config import exits
from scalelab.config.fields import flatten
from scalelab.config.finetuning import FinetuneConfig, override, resolve
from scalelab.finetuning import progress as finetune_progress
from scalelab.finetuning import results as finetune_results
from scalelab.finetuning import rows as finetune_rows
from scalelab.finetuning import step as finetune_step
from scalelab.finetuning import warm_start
from scalelab.finetuning.kinds import classify
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.training import Finetuning
from scalelab.objectives import Pass
from scalelab.records import predictions
from scalelab.resources import flops
from scalelab.state import TrainState
from scalelab.step import make_train_step
from scalelab.tasks import batches
from scalelab.tasks.batches import TaskBatches
from scalelab.tasks.records import Records
from scalelab.tasks.task import Splits, Task, load_task
from scalelab.training.pretrained import load_trained

Runs = Callable[[str], pathlib.Path]
WORDS = "at by do go if in me no or up".split()


def records(task: Task, n: int, seed: int) -> Records:
    """Invented rows; whether the first text has the word "go" decides the label."""
    rng = np.random.default_rng(seed)
    columns = tuple(
        [" ".join(rng.choice(WORDS, rng.integers(2, 6))) for _ in range(n)]
        for _ in task.columns.texts
    )
    hits = np.array(["go" in text.split() for text in columns[0]])
    labels = hits.astype(np.float32) if task.regression else hits.astype(np.int32)
    digest = hashlib.sha256(repr(columns).encode()).hexdigest()
    return Records(columns, labels, "invented", digest)


def config(cache_dir: pathlib.Path, **fields: Any) -> FinetuneConfig:
    small = dict(epochs=2.0, batch_size=8, max_len=32, optim__learning_rate=1e-2)
    small |= dict(machine__eval_batch_size=8, machine__log_every_steps=2)
    return resolve(fine_tuned.values(cache_dir, **(small | fields)))


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch has the same shape: compiling takes longest."""
    monkeypatch.setattr(batches, "BUCKETS", (32,))


@pytest.fixture
def prepare(pretrained_runs: Runs, cache_dir: pathlib.Path, tmp_path: pathlib.Path):
    """prepare(system, task, ..., **fields of the config) -> TaskRun."""

    def make(system, name, *, scratch=False, num_rows=36, folder="task", **fields: Any) -> TaskRun:
        task = load_task(name)
        path = str(pretrained_runs(system))
        start = warm_start.open_start(*(("none", path) if scratch else (path,)))
        dev = {split.name: None for split in task.dev_splits}
        dev[task.dev_splits[0].name] = records(task, 21, 1)
        splits = Splits(records(task, num_rows, 0), dev, {})
        return TaskRun(task, splits, start, config(cache_dir, **fields), tmp_path / folder)

    return make


def train(run: TaskRun, *seeds: int) -> None:
    for seed in seeds:
        finetune.train([run], seed, run.workdir)


def predict(run: TaskRun, params: Any, batch: dict[str, np.ndarray]) -> jax.Array:
    return finetune_step.compiled(run.learner, run.mesh).predict(params, {}, batch)


def result(run: TaskRun, seed: int = 0) -> dict[str, Any]:
    return json.loads((run.folder(seed) / "result.json").read_text())


def begin(run: TaskRun) -> TrainState:
    """The state of seed 0 before its first step."""
    return run.learner.init(0, run.first_params(0))


def outputs(run: TaskRun, seed: int = 0) -> np.ndarray:
    """The finished seed's outputs on dev, each example alone and unpadded."""
    params = load_trained(run.folder(seed))
    (examples,) = [e for e in run.dev.values() if e is not None]
    rows = [examples.gather(np.array([i]), 32) for i in range(len(examples))]
    program = finetune_step.compiled(run.learner, run.mesh)
    placed = program.place(params)
    return np.concatenate([program.predict(*placed, row) for row in rows])


# --- Input and model ------------------------------------------------------------------------------


@pytest.mark.parametrize(("system", "task", "expected"), [
    ("bert", "cola", "[CLS] A [SEP]"),
    ("bert", "rte", "[CLS] A [SEP] B [SEP]"),
    ("roberta", "rte", "<s> A </s> </s> B </s>"),
    ("gpt2", "sst2", "<|start|> A <|end|>"),
    ("gpt", "rte", "<|start|> A <|delimiter|> B <|end|>"),
])  # fmt: skip
def test_each_family_sees_its_own_input(prepare, system: str, task: str, expected: str) -> None:
    run = prepare(system, task)
    texts = run.splits.train.texts
    batch = run.train.gather(np.arange(36), 32)
    for i in range(36):
        row, second_start = batch["tokens"][i][: batch["lengths"][i]], batch["second_starts"][i]
        pieces: list[int] = []
        for word in expected.split():
            if word == "B":
                assert second_start == len(pieces)
            if word in "AB":
                pieces += run.tokenizer.encode(texts["AB".index(word)][i]).tolist()
            else:
                pieces.append(run.tokenizer.token_id(word))
        assert row.tolist() == pieces
        if "B" not in expected:
            assert second_start == len(row)


def test_gpt_reads_similar_texts_in_both_orders(prepare) -> None:
    run = prepare("gpt2", "mrpc")
    batch = run.train.gather(np.arange(4), 32)
    state = begin(run)
    swapped = dict(batch)
    for name in ("tokens", "lengths", "second_starts"):
        swapped[name] = batch[name].reshape(4, 2, -1)[:, ::-1].reshape(batch[name].shape)
    params = state.params | {"head": jax.tree.map(lambda x: 30 * x, state.params["head"])}
    given, other = (predict(run, params, b) for b in (batch, swapped))
    np.testing.assert_allclose(given, other, atol=1e-5)
    cut = batch | {"tokens": batch["tokens"].copy()}
    cut["tokens"][0, 1] += 1  # a change in either order shows
    assert abs(predict(run, params, cut)[0] - given[0]).max() > 1e-4
    entailment = prepare("gpt2", "rte")
    assert entailment.train.num_rows == 1


def test_the_vector_that_is_read(prepare) -> None:
    """Scores of a frame-only change at the read position, and at no padding."""
    for system, place in (("bert", 0), ("gpt2", -1)):
        run = prepare(system, "cola")
        batch = run.train.gather(np.arange(6), 32)
        net, state = run.learner.net, begin(run)
        hidden, _ = jax.jit(net.body.apply, static_argnames="train")(
            {"params": state.params["body"]}, batch, train=False
        )
        vectors = jnp.stack([h[:n][place] for h, n in zip(hidden, batch["lengths"], strict=True)])
        head = state.params["head"]
        dense = jnp.tanh(vectors @ head["dense"]["kernel"] + head["dense"]["bias"])
        expected = dense @ head["out"]["kernel"] + head["out"]["bias"]
        made = predict(run, state.params, batch)
        np.testing.assert_allclose(made, expected, atol=1e-6)


def test_where_parameters_come_from(prepare) -> None:
    run = prepare("bert", "cola")
    pretrained = run.start.opened.params
    params = run.learner.first_params(3, pretrained)
    body = {k: pretrained[k] for k in params["body"]}
    jax.tree.map(np.testing.assert_array_equal, params["body"], body)
    np.testing.assert_array_equal(
        params["head"]["dense"]["kernel"], pretrained["pair_head"]["pooler"]["kernel"]
    )
    other = run.learner.first_params(4, pretrained)
    assert abs(params["head"]["out"]["kernel"] - other["head"]["out"]["kernel"]).max()
    fresh = prepare("bert", "cola", head__pretrained=False).learner.first_params(3, pretrained)
    assert abs(fresh["head"]["dense"]["kernel"] - params["head"]["dense"]["kernel"]).max()
    scratch = run.learner.first_params(3, None)
    assert abs(scratch["body"]["embed"]["tokens"]["table"]).std() > 0
    gpt = prepare("gpt2", "cola")
    before = gpt.start.opened.params["embed"]["tokens"]["table"]
    made = gpt.learner.first_params(0, gpt.start.opened.params)["body"]["embed"]["tokens"]
    np.testing.assert_array_equal(made["table"][:300], before)
    assert made["table"].shape == (303, 8) and abs(made["table"][300:]).min(axis=1).all()


# --- The loss -----------------------------------------------------------------------------------


def test_losses_by_hand() -> None:
    scores = jnp.array([[0.0, np.log(3.0)], [2.0, 2.0]])
    batch = {"labels": jnp.array([1, 0]), "weights": jnp.array([1.0, 3.0])}
    made = classify.loss(scores, batch)
    np.testing.assert_allclose(made, [np.log(4 / 3) + 3 * np.log(2), 4], rtol=1e-6)
    batch["labels"] = jnp.array([1.0, 4.0])
    np.testing.assert_allclose(classify.loss(jnp.array([[1.5], [2.0]]), batch), [0.25 + 12, 4])


def step(run: TaskRun, batch: Any, rate: float = 1e-2) -> tuple[Any, Any]:
    """Takes the first step of seed 0; returns the state and the metrics after it."""
    learner = run.learner
    train_step = make_train_step(learner.net, learner.all_terms, learner.optimizer)
    return jax.jit(train_step)(begin(run), batch, np.float32(rate))


def test_filling_up_a_batch_moves_nothing(prepare) -> None:
    run = prepare("gpt2", "cola", lm_weight=0.5)
    small, filled = (
        run.train.gather(np.array(ids), n) for ids, n in (((3, 5), 16), ((3, 5, -1), 24))
    )
    (a, first), (b, second) = step(run, small, 1e-3), step(run, filled, 1e-3)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), a.params, b.params)
    np.testing.assert_allclose(
        first["loss"][0] / first["loss"][1], second["loss"][0] / second["loss"][1], rtol=1e-5
    )


def test_the_auxiliary_loss(prepare) -> None:
    """Its gradient is added with its weight; without one it is not there."""
    still = {"dropout_rate": 0.0, "head__dropout_rate": 0.0}
    plain = prepare("gpt2", "cola", **still)
    mixed = prepare("gpt2", "cola", lm_weight=0.5, **still)
    batch = plain.train.gather(np.arange(4), 16)
    params, (term,) = begin(plain).params, mixed.learner.terms

    def parts(params: Any) -> tuple[jax.Array, jax.Array]:
        scores, ctx = mixed.learner.scores(params, batch), Pass(jax.random.key(1))
        predict = lambda net: term.objective.losses(net.body, batch, ctx)["loss"]  # noqa: E731
        total, weight = mixed.learner.net.apply({"params": params}, method=predict)
        return classify.loss(scores, batch)[0] / 4, total / weight

    (_, alone), (_, pairs) = step(plain, batch), step(mixed, batch)
    loss, beside = jax.jit(parts)(params)
    np.testing.assert_allclose(alone["loss"][0], loss, rtol=1e-6)
    np.testing.assert_allclose(pairs["loss"][0], loss + 0.5 * beside, rtol=1e-6)
    assert "clm_loss" not in alone
    tokens = float(pairs["clm_loss"][1])
    assert tokens == batch["lengths"].sum() - 4
    assert 4 < float(pairs["clm_loss"][0]) / tokens < 8  # log 303 = 5.7

    def norm(weight: float) -> float:
        gradient = jax.grad(lambda p: parts(p)[0] + weight * parts(p)[1])
        return float(optax.tree.norm(jax.jit(gradient)(params)))

    assert float(pairs["grad_norm"][0]) == pytest.approx(norm(0.5), rel=1e-5)
    assert abs(norm(0.5) - norm(1.0)) > 1e-2 * norm(0.5)


def test_a_frozen_net_stays_and_its_top_layers_are_seen(prepare) -> None:
    run = prepare("bert", "cola", feature_layers=1)
    batch = run.train.gather(np.arange(8), 16)
    state = begin(run)
    assert set(state.params) == {"head"}
    hidden, _ = jax.jit(run.learner.net.body.apply, static_argnames="train")(
        {"params": state.frozen["body"]}, batch, train=False
    )
    seen = run.learner.scores(state.params | state.frozen, batch)
    given = {"params": {"head": state.params["head"]}}, hidden, batch
    expected = run.learner.net.apply(*given, train=False, method="classify")
    np.testing.assert_allclose(seen, expected, atol=1e-6)
    before, (after, _) = state, step(run, batch)
    jax.tree.map(np.testing.assert_array_equal, after.frozen, before.frozen)
    moved = after.params["head"]["out"]["kernel"] - before.params["head"]["out"]["kernel"]
    assert abs(moved).max() > 0


def test_layer_decay_slows_what_is_below(prepare) -> None:
    slow, plain = (prepare("bert", "cola", optim__layer_decay=d) for d in (0.5, None))
    batch = plain.train.gather(np.arange(8), 16)
    before = jax.device_get(begin(plain).params)
    (a, _), (b, _) = step(slow, batch), step(plain, batch)
    moved = lambda state: jax.tree.map(jnp.subtract, state.params, before)  # noqa: E731
    for part, factor in (("head", 1.0), ("stack", 0.5), ("embed", 0.25)):
        ours, theirs = (
            m["head"] if part == "head" else m["body"][part] for m in map(moved, (a, b))
        )
        jax.tree.map(
            lambda x, y, f=factor: np.testing.assert_allclose(x, f * y, atol=1e-7), ours, theirs
        )


# --- Whole runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("system", "task"), [("bert", "rte"), ("gpt2", "stsb")])
def test_what_a_run_leaves(prepare, system: str, task: str) -> None:
    run = prepare(system, task)
    train(run, 0)
    made = result(run)
    assert made["status"] == "completed" and made["task"] == task and made["steps"] == 10
    assert set(made["eval"]["dev"]) == set(run.task.metrics)
    folder = run.folder(0)
    lines = (folder / "predictions.tsv").read_text().splitlines()
    assert len(lines) == 1 + 21 and (folder / "curves.png").is_file()
    sizes = [leaf.size for leaf in jax.tree.leaves(load_trained(folder))]
    assert made["params"] == sum(sizes) != flops.count_parameters(run.start.opened.params)
    found, gold = outputs(run), run.splits.dev["dev"].labels
    if run.task.regression:
        assert found.std() > 1e-3
        expected = np.corrcoef(found[:, 0], gold)[0, 1]
        assert made["eval"]["dev"]["pearson"] == pytest.approx(expected, abs=1e-3)
    else:
        assert made["eval"]["dev"]["accuracy"] == (found.argmax(axis=1) == gold).mean()
    config = json.loads((folder / "config.json").read_text())
    labels = None if run.task.regression else ["entailment", "not_entailment"]
    assert (config["task"], config["labels"]) == (task, labels)
    assert (config["relation"], config["regression"]) == (run.task.relation, run.task.regression)
    steps = [json.loads(x)["step"] for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] == 10
    assert not list(run.workdir.glob(".resume*"))
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder / "tokenizer")
    text = run.splits.dev["dev"].texts[0][0]
    assert loaded.encode(text, add_special_tokens=False) == run.tokenizer.encode(text).tolist()
    for token in run.start.opened.system.ADAPTATION.added_tokens:
        assert loaded.convert_tokens_to_ids(token) == run.tokenizer.token_id(token)


def test_the_training_loss_is_that_of_the_last_epoch(prepare) -> None:
    """36 examples in batches of 8: five steps an epoch, of which one has four."""
    run = prepare("roberta", "cola", machine__log_every_steps=1)
    train(run, 0)
    rows = [json.loads(x) for x in (run.folder(0) / "metrics.jsonl").read_text().splitlines()]
    means = [row["train/loss"] for row in rows if "train/loss" in row][-5:]
    weights = np.array([(run.batches(0).ids(step) >= 0).sum() for step in range(5, 10)])
    assert sorted(weights) == [4, 8, 8, 8, 8]
    expected = float(np.average(means, weights=weights))
    assert result(run)["train_loss"] == pytest.approx(expected, rel=1e-6)
    # It is finished: not done again, and another is refused.
    assert run.claim(0) and not run.claim(1)
    with pytest.raises(ValueError, match="another config"):
        prepare("roberta", "cola", epochs=1.0).claim(0)


def test_how_many_steps_go_at_once_changes_nothing(prepare) -> None:
    """One or eight, bit for bit: parameters, every line, predictions and scores."""
    runs = []
    for count in (1, 8):
        fields = {"machine__steps_per_dispatch": count, "machine__log_every_steps": 4}
        run = prepare("bert", "rte", folder=f"{count}", num_rows=72, **fields)
        train(run, 0)
        runs.append(run)
    found = finetune_step.compiled(run.trained, run.mesh).compiled
    assert {most for _, _, most in found} == {1, 8}
    jax.tree.map(np.testing.assert_array_equal, *(load_trained(run.folder(0)) for run in runs))
    a, b = ((run.folder(0) / "predictions.tsv").read_text() for run in runs)
    assert a == b and timeless(runs[0]) == timeless(runs[1])
    changing = {"seconds": 0, "peak_memory_bytes": 0}
    assert result(runs[0]) | changing == result(runs[1]) | changing


def test_order_and_weights_vary_alone(prepare) -> None:
    """With one of the two seeds fixed, runs differ in the other; with both, not at all."""
    for fields, expected in (
        ({}, (False, False, False)),
        ({"weights_seed": 0}, (False, True, True)),
        ({"order_seed": 0}, (True, False, False)),
        ({"weights_seed": 0, "order_seed": 0}, (True, True, True)),
    ):
        run = prepare("bert", "mrpc", **fields)
        batches = [run.batches(seed)(0)["labels"] for seed in (0, 1)]
        states = [run.first_state(seed, run.first_params(seed)) for seed in (0, 1)]
        kernels = [state.params["head"]["out"]["kernel"] for state in states]
        pairs = (batches, kernels, [state.rng for state in states])
        assert tuple(bool(np.array_equal(x, y)) for x, y in pairs) == expected
        (line,) = [line for line in finetune_results.remarks(run) if "beyond recipe" in line]
        assert all(name in line for name in fields)


@pytest.mark.slow
@pytest.mark.parametrize(("system", "task", "fields"), [
    ("gpt2", "stsb", {"optim__layer_decay": 0.5}),  # added tokens, both orders
    ("roberta", "rte", {"patience": 1, "epochs": 3.0}),
])  # fmt: skip
def test_rows_that_no_text_names_need_no_moments(
    prepare, monkeypatch, system: str, task: str, fields: dict[str, Any]
) -> None:
    """The same parameters as with the whole table, for two seeds: decay moves the others."""
    monkeypatch.setattr(finetune_rows, "MULTIPLE", 8)
    fields = dict(optim__weight_decay=2.0, **fields)
    whole = prepare(system, task, folder="whole", **fields)
    monkeypatch.setattr(finetune_rows, "WORTH", 0.0)
    narrow = prepare(system, task, folder="narrow", **fields)
    assert whole.rows is None and narrow.rows is not None
    unnamed = np.setdiff1d(np.arange(narrow.rows.num_rows), narrow.rows.ids)
    assert len(unnamed) > 8 and narrow.rows.size < narrow.rows.num_rows
    for run in (whole, narrow):
        train(run, 0, 1)
    assert not list(narrow.workdir.glob(".resume*"))
    for seed in range(2):
        a, b = (load_trained(run.folder(seed)) for run in (whole, narrow))
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), a, b)
        ours, theirs = (flatten(result(run, seed)) for run in (narrow, whole))
        names = [k for k in ours if k.startswith("eval.")] + ["train_loss", "flops", "params"]
        assert {k: ours[k] for k in names} == pytest.approx({k: theirs[k] for k in names}, abs=1e-5)
        first = narrow.first_params(seed)
        before, after = (np.asarray(narrow.rows.table(x))[unnamed] for x in (first, b))
        factors = (after / np.where(before == 0, np.nan, before)).ravel()
        decayed = np.nanmedian(factors)
        np.testing.assert_allclose(factors[np.isfinite(factors)], decayed, rtol=1e-3)
        assert 0.5 < decayed < 0.99


def test_nets_that_train_every_row_or_none_keep_the_whole_table(prepare, monkeypatch) -> None:
    monkeypatch.setattr(finetune_rows, "MULTIPLE", 8)
    monkeypatch.setattr(finetune_rows, "WORTH", 0.0)
    assert prepare("gpt2", "cola").rows is not None
    assert prepare("gpt2", "cola", lm_weight=0.5).rows is None
    assert prepare("bert", "cola", feature_layers=1).rows is None


def timeless(run: TaskRun) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of the first seed, without seconds."""
    lines = (run.folder(0) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k != "seconds"} for x in lines]


def killed() -> None:
    raise KeyboardInterrupt


def test_tables_say_what_the_recipe_has_not_and_what_was_cut(prepare) -> None:
    run = prepare("bert", "cola", max_len=6)
    _, beyond, unknown, cut = finetune_results.remarks(run)
    assert re.fullmatch(r"CoLA: \d+ of \d+ tokens, prompts .* tokenizer of bert", unknown)
    fields = "epochs 2.0, batch_size 8, max_len 6, lm_weight 0.0, learning_rate 0.01"
    assert re.fullmatch(f"CoLA: .* thesis: {fields}", beyond)
    counts = [run.train.num_truncated, run.dev["dev"].num_truncated]
    assert re.match(rf"CoLA: .* 6 .*: \w+ {counts[0]} of 36 .*, {counts[1]} of 21 ", cut)
    base = resolve(override(dataclasses.asdict(FinetuneConfig()), {"batch_size": 8}))
    turc = dataclasses.replace(base, recipe="turc")  # a point of its grid
    assert finetune_results.beyond_recipe(turc, None, "cola") == {"epochs": 3.0}
    own = dataclasses.replace(base, recipe="layerwise", epochs=10.0)
    assert "epochs" not in finetune_results.beyond_recipe(own, None, "rte")
    assert finetune_results.beyond_recipe(own, None, "cola")["epochs"] == 10.0


@pytest.mark.parametrize(("stop", "code", "narrow"), [
    (killed, None, False),
    (lambda: signal.raise_signal(signal.SIGTERM), exits.PREEMPTED, True),
], ids=["killed", "SIGTERM"])  # fmt: skip
def test_a_stopped_run_continues_bit_for_bit(prepare, monkeypatch, stop, code, narrow) -> None:
    """A signal ends it after the step under way, saved; a kill leaves the last checkpoint."""
    if narrow:
        monkeypatch.setattr(finetune_rows, "MULTIPLE", 8)
        monkeypatch.setattr(finetune_rows, "WORTH", 0.0)
    whole, cut = (
        prepare("bert", "cola", folder=name, machine__checkpoint_every_steps=3)
        for name in ("whole", "cut")
    )
    train(whole, 0)
    real, steps = TaskBatches.__call__, []

    def noted(self: Any, step: int, length: int | None = None) -> Any:
        steps.append(step)
        if step == 7 and steps.count(7) == 1:
            stop()
        return real(self, step, length)

    monkeypatch.setattr(TaskBatches, "__call__", noted)
    with pytest.raises(KeyboardInterrupt if code is None else exits.Stopped) as stopped:
        train(cut, 0)
    if code is not None:
        assert stopped.value.exit_code == code
        assert re.search("step 8 is saved.*same command", str(stopped.value))
    other = prepare("bert", "cola", folder="cut", optim__learning_rate=3e-3)
    with pytest.raises(ValueError, match=r"another config.*\n  optim.learning_rate: "):
        train(other, 0)
    train(cut, 0)
    again = 6 if code is None else 8
    assert steps == [*range(8), *range(again, 10)]
    a, b = (load_trained(r.folder(0)) for r in (whole, cut))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert timeless(whole) == timeless(cut)


def test_a_signal_in_the_last_evaluation_is_not_forgotten(prepare, monkeypatch) -> None:
    """The run is finished, and no other begins."""
    run = prepare("bert", "cola")
    real, calls = Finetuning.evaluate, []

    def stopping(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(Finetuning, "evaluate", stopping)
    with pytest.raises(exits.Stopped, match="cola seed 0") as stopped:
        train(run, 0)
    assert stopped.value.exit_code == exits.PREEMPTED
    assert result(run, 0)["status"] == "completed"


@pytest.mark.slow
def test_a_run_killed_after_its_last_step_only_writes_the_rest(prepare, monkeypatch) -> None:
    run = prepare("roberta", "cola", machine__checkpoint_every_steps=5)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TaskRun, "save", lambda *_: killed())
        train(run, 0)
    before = timeless(run)
    train(run, 0)
    assert timeless(run) == before and result(run)["steps"] == 10
    found = predictions.read(run.folder(0) / "predictions.tsv").predicted
    np.testing.assert_array_equal(found, outputs(run).argmax(axis=1))


@pytest.mark.slow
def test_a_planted_rule_is_learnt(prepare, pretrained_runs: Runs) -> None:
    """One word decides: training finds it, and a rate of zero does not.

    Of so many rows each of six seeds finds it whole; of 36, seen forty times, some learn the rows.
    """
    run = prepare("roberta", "cola", scratch=True, num_rows=640, epochs=5.0, eval_every_epochs=5.0)
    train(run, 0)
    assert result(run)["eval"]["dev"]["matthews"] > 0.8
    assert result(run)["init"] == "none" and result(run)["degenerate"] is None


def test_a_seed_whose_last_step_broke_has_failed(prepare) -> None:
    """Its loss and gradient were finite: only the parameters after it are not."""
    fields = {"epochs": 1.0, "optim__warmup_rate": 0.0, "optim__learning_rate": 1e37}
    run = prepare("roberta", "cola", num_rows=8, **fields)
    train(run, 0)
    made = result(run)
    assert made["status"] == "failed" and "outputs not finite after step" in made["degenerate"]


def test_runs_that_learn_nothing_or_diverge_are_flagged(prepare) -> None:
    """A rate of zero, and one that is far too high: the second step is not finite, and the last."""
    fields = {"epochs": 1.0, "machine__steps_per_dispatch": 1, "machine__log_every_steps": 100}
    still, diverged = (
        prepare("roberta", "cola", folder=f"{rate}", optim__learning_rate=rate, **fields)
        for rate in (0.0, 1e30)
    )
    for run in (still, diverged):
        train(run, 0)
    assert result(still)["degenerate"] and result(still)["status"] == "completed"
    made = result(diverged)
    assert made["status"] == "failed" and "not finite at step 2" in made["degenerate"]
    assert made["steps"] == 2
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(load_trained(diverged.folder(0))))
    assert made["eval"]["dev"]["matthews"] is None
    lines = (diverged.folder(0) / "metrics.jsonl").read_text().splitlines()
    for text in (*lines, (diverged.folder(0) / "result.json").read_text()):
        json.loads(text, parse_constant=pytest.fail)


@pytest.mark.slow
def test_early_stopping_keeps_the_best(prepare, monkeypatch) -> None:
    best_step, judge = {0: 5, 1: 15}, finetune_progress.Progress.judge
    evaluate, seen, now = Finetuning.evaluate, {}, []

    def noted(self: Finetuning) -> None:
        now[:] = [self.seed]
        seen[self.seed, self.step] = jax.device_get(self.state.params)
        evaluate(self)

    def planned(self: Any, step: int, dev: Any, score: Any, patience: int | None) -> bool:
        steps = {id(x["dev"]): x["step"] for x in self.evals} | {id(dev): step}
        rank = lambda d: -abs(steps[id(d)] - best_step[now[0]])  # noqa: E731
        return judge(self, step, dev, rank, patience)

    monkeypatch.setattr(Finetuning, "evaluate", noted)
    monkeypatch.setattr(finetune_progress.Progress, "judge", planned)
    run = prepare("bert", "cola", patience=1, epochs=5.0, optim__learning_rate=3e-2)
    train(run, 0, 1)
    for seed, stop in ((0, 10), (1, 20)):
        made = flatten(result(run, seed))
        assert made["eval.dev.matthews"] == made["best.dev.dev.matthews"]
        assert (made["best.step"], made["stopped"], made["steps"]) == (stop - 5, stop, stop)
        kept = load_trained(run.folder(seed))
        jax.tree.map(np.testing.assert_array_equal, kept, seen[seed, stop - 5])
        answers, gold = outputs(run, seed).argmax(axis=1), run.splits.dev["dev"].labels
        hits = np.corrcoef(answers, gold)[0, 1] if answers.std() else 0.0
        assert made["eval.dev.matthews"] == pytest.approx(hits, abs=1e-6)


# --- The program ----------------------------------------------------------------------------------


def test_what_cannot_work_is_refused(prepare, pretrained_runs: Runs) -> None:
    for fields, message in (
        (dict(max_len=128), "max_len = 128 .*--config.max_len=64"),
        (dict(feature_layers=3), "feature_layers = 3 .*2 layers"),
        (dict(batch_size=64), "batch_size = 64 .*36 "),
        (dict(head__kind="triple"), "head.kind = 'triple'"),
        (dict(epochs=0.0), "epochs = 0.0"),
        (dict(epochs=float("inf")), "epochs = inf"),
        (dict(eval_every_epochs=float("inf")), "eval_every_epochs = inf"),
        (dict(lm_weight=float("nan")), "lm_weight = nan"),
        (dict(patience=0), "patience = 0"),
        (dict(optim__layer_decay=1.5), "layer_decay = 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare("bert", "cola", **fields)
    run = str(pretrained_runs("bert"))
    for arguments, message in (
        (("none",), "--like"),
        ((run, run), "--init=none and --like"),
        ((run, None, run), "MNLI"),
    ):
        with pytest.raises(ValueError, match=message):
            warm_start.open_start(*arguments)


@pytest.mark.parametrize(("task", "constant"), [("cola", 1), ("stsb", 2.5)])
def test_a_score_that_gold_leaves_undefined_is_missing(prepare, task: str, constant) -> None:
    run = prepare("bert", task)
    ((split, gold),) = ((k, x.labels) for k, x in run.splits.dev.items() if x is not None)
    outputs = {split: np.random.default_rng(0).normal(size=(len(gold), 2 - (task == "stsb")))}
    scores = finetune_results.measure(run, outputs)[split]
    assert None not in scores.values() and not finetune_results.undefined(run)
    gold[:] = constant
    assert set(finetune_results.measure(run, outputs)[split].values()) == {None}
    assert finetune_results.undefined(run)[split].keys() == scores.keys()
    assert any("undefined" in remark for remark in finetune_results.remarks(run))
