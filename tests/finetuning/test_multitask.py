"""Several tasks at once: each against single-task fine-tuning, and against torch's AdamW."""

import functools
import json
from typing import Any

import jax
import numpy as np
import pytest
from test_finetune import config, one_bucket, records  # noqa: F401

from scalelab import finetune, step
from scalelab.finetuning import warm_start
from scalelab.finetuning.joint import Joint, draw_order
from scalelab.finetuning.run import TaskRun
from scalelab.objectives import Pass
from scalelab.optim.adamw import is_decayed
from scalelab.records import run_files as records_lib
from scalelab.tasks.batches import TaskBatches
from scalelab.tasks.task import Splits, load_task
from scalelab.training.pretrained import load_trained

SIZES = {"rte": 36, "stsb": 20, "cola": 12}  # 5, 3 and 2 batches an epoch
equal = functools.partial(jax.tree.map, np.testing.assert_array_equal)


@pytest.fixture
def prepare(pretrained_runs, cache_dir, tmp_path):
    """prepare(folder, names, **fields of the config) -> TaskRuns."""

    def make(folder: str, *names: str, **fields: Any) -> list[TaskRun]:
        start = warm_start.open_start(str(pretrained_runs("bert")))
        if fields.get("sharing"):
            fields.setdefault("sharing_tasks", ",".join(names))
        made = []
        for name in names:
            task = load_task(name)
            splits = Splits(records(task, SIZES[name], 0), {"dev": records(task, 9, 1)}, {})
            own = config(cache_dir, machine__tracker=None, **fields)
            made.append(TaskRun(task, splits, start, own, tmp_path / folder / name))
        return made

    return make


def train(runs: list[TaskRun]) -> list[Any]:
    """The parameters that seed 0 of each ends with."""
    finetune.train(runs, 0, runs[0].workdir.parent)
    return [load_trained(run.folder(0)) for run in runs]


def left(run: TaskRun) -> tuple[Any, ...]:
    """What a run leaves, without times and the fields of sharing."""
    folder = run.folder(0)
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    for values in (result, *lines):
        values.pop("seconds")
    for name in ("settings", "remarks", "peak_memory_bytes"):
        result.pop(name)
    return lines, result, (folder / "predictions.tsv").read_text()


def test_one_task_is_single_task_fine_tuning(prepare) -> None:
    (joint,), (single,) = prepare("joint", "rte", sharing="hard"), prepare("alone", "rte")
    equal(train([joint]), train([single]))
    assert left(joint) == left(single)
    assert records_lib.read_result(joint.folder(0)).settings["sharing"] == "hard"


def take_step(joint: Joint) -> dict[str, float]:
    """Takes the next step; returns its metrics."""
    if joint.next_program() is None:
        with joint.compiling() as parts:
            joint.blocks = step.compile_blocks(parts)
    blocks, arrays = joint.next_program() or pytest.fail()
    rows, rates = joint.plan_block(1)
    assert rates[0] > 0
    joint.state, found, _ = blocks(joint.state, arrays, rows, rates, np.True_)
    return {name: float(total[0] / weight[0]) for name, (total, weight) in found.items()}


def scores_in_training(run: TaskRun, params: Any, batch: Any, rng: jax.Array) -> jax.Array:
    """Scores with dropout, from the key of a step."""
    ctx = Pass(rng, train=True)
    rngs = {"dropout": ctx.key("dropout")}
    return run.learner.net.apply({"params": params}, batch, ctx.hidden, train=True, rngs=rngs)


def test_a_hard_step_is_the_tasks_own_and_leaves_other_heads(prepare, monkeypatch) -> None:
    """A step of the second task, whose head has other layers, on the body of the first."""
    shared, single = {"sharing": "hard", "sharing_tasks": "rte,stsb"}, {"head__kind": "single"}
    runs = [*prepare("a", "rte", **shared), *prepare("a", "stsb", **shared, **single)]
    (alone,) = prepare("b", "stsb", **single)
    joint = Joint(runs, 0, None)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(joint, "_order", np.array([0, 1]))
    take_step(joint)
    first, second = joint.members
    before, heads = jax.device_get((second.state, first.state.params["head"]))
    equal(before.params["body"], jax.device_get(first.state.params["body"]))
    found = take_step(joint)
    equal(jax.device_get(first.state.params["head"]), heads)
    equal(*jax.device_get([member.state.params["body"] for member in (first, second)]))
    batch = alone.batches(0)(0)

    def loss(params: Any) -> jax.Array:
        rng = jax.random.fold_in(jax.random.wrap_key_data(before.rng), before.step)
        scores = scores_in_training(alone, params, batch, rng)
        return alone.learner.loss(scores, batch)[0] / batch["weights"].sum()

    norm = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(jax.grad(loss)(before.params))))
    assert found["loss"] == pytest.approx(float(loss(before.params)), rel=1e-5)
    assert found["grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def torch_bodies(runs: list[TaskRun], steps: int) -> list[np.ndarray]:
    """Leaves of the body and of each head after AdamW of torch, which skips other heads."""
    torch = pytest.importorskip("torch")
    optim, order = runs[0].config.optim, draw_order(runs, 0)[:steps]
    first = [run.first_params(0) for run in runs]
    parts = [{"body": first[0]["body"]}, *({"head": params["head"]} for params in first)]
    flat, trees = zip(*(jax.tree.flatten_with_path(part) for part in parts), strict=True)
    tensors = [[torch.tensor(np.array(x), requires_grad=True) for _, x in p] for p in flat]
    groups: dict[bool, list[Any]] = {True: [], False: []}
    for part, own in zip(flat, tensors, strict=True):
        for (path, _), tensor in zip(part, own, strict=True):
            groups[is_decayed(path)].append(tensor)
    adamw = torch.optim.AdamW(
        [{"params": groups[True]}, {"params": groups[False], "weight_decay": 0.0}],
        betas=(optim.beta1, optim.beta2), eps=optim.eps, weight_decay=optim.weight_decay,
    )  # fmt: skip
    for t, k in enumerate(order):
        run, place = runs[k], int((order[:t] == k).sum())
        whole: dict[str, Any] = {}
        for tree, own in zip(trees, tensors, strict=True):
            if own is tensors[0] or own is tensors[1 + k]:
                whole |= jax.tree.unflatten(tree, [x.detach().numpy() for x in own])
        batch = run.batches(0)(place)

        def loss(params: Any, run: Any = run, batch: Any = batch) -> jax.Array:
            scores = scores_in_training(run, params, batch, jax.random.key(0))
            return run.learner.loss(scores, batch)[0] / batch["weights"].sum()

        found = jax.grad(loss)(whole)
        adamw.zero_grad(set_to_none=True)
        for name, own in (("body", tensors[0]), ("head", tensors[1 + k])):
            for tensor, gradient in zip(own, jax.tree.leaves(found[name]), strict=True):
                tensor.grad = torch.tensor(np.array(gradient))
        for group in adamw.param_groups:
            group["lr"] = optim.learning_rate * (1 - place / run.num_steps)
        adamw.step()
    return [x.detach().numpy() for own in tensors for x in own]


def test_hard_sharing_is_torchs_adamw(prepare) -> None:
    """Moments and counts of steps: the body's go through all tasks, a head's are its own."""
    still = {"dropout_rate": 0.0, "head__dropout_rate": 0.0, "optim__clip_norm": None}
    runs = prepare("a", "rte", "stsb", sharing="hard", epochs=1.0, **still)
    bodies, other = train(runs)
    equal(bodies["body"], other["body"])
    expected = torch_bodies(runs, 8)
    found = jax.tree.leaves([bodies["body"], bodies["head"], other["head"]])
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_every_epoch_has_every_batch_once(prepare) -> None:
    runs = prepare("a", *SIZES, sharing="hard")
    order = draw_order(runs, 0)
    for epoch in (order[:10], order[10:]):
        assert np.bincount(epoch).tolist() == [5, 3, 2]
    np.testing.assert_array_equal(order, draw_order(runs, 0))
    assert (order != draw_order(runs, 1)).any()
    assert (order[:10] != order[10:]).any() and (order != np.sort(order)).any()


def test_a_killed_run_continues_bit_for_bit(prepare, stop_at) -> None:
    fields = {"machine__checkpoint_every_steps": 4, "sharing": "hard"}
    whole, cut = (prepare(name, "rte", "stsb", **fields) for name in ("whole", "cut"))
    expected, made = train(whole), stop_at(TaskBatches, "__call__", 11)
    with pytest.raises(KeyboardInterrupt):
        train(cut)
    equal(train(cut), expected)
    assert len(made) == 11 + 16 - 8
    for ours, theirs in zip(cut, whole, strict=True):
        assert left(ours) == left(theirs)
        assert ours.claim(0) is not None
    assert not list(cut[0].workdir.parent.glob(".resume*"))
    other = prepare("cut", "rte", "stsb")
    with pytest.raises(ValueError, match=r"another config.*\n  sharing: "):
        other[0].claim(0)


def test_a_failure_ends_all_tasks(prepare) -> None:
    """The step after the one that failed was started, and is not counted."""
    fields = {"optim__learning_rate": 1e30, "machine__log_every_steps": 100}
    runs = prepare("a", "rte", "stsb", sharing="hard", machine__steps_per_dispatch=1, **fields)
    train(runs)
    results = [run.result(0) for run in runs]
    assert {made["status"] for made in results} == {"failed"}
    assert len({made["degenerate"] for made in results}) == 1
    assert sum(made["steps"] for made in results) == 2


def test_what_cannot_be_shared_is_refused(prepare) -> None:
    for fields, message in (
        ({"sharing": "soft"}, "sharing = 'soft'.*'hard'"),
        ({"sharing": "hard", "patience": 1}, "config.patience"),
        ({"sharing": "hard", "feature_layers": 1}, "config.feature_layers"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare("a", "rte", **fields)
