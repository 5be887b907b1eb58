"""ERNIE 2.0: labels, the schedule of tasks and its ledger, task ids; transformers."""

import pathlib
from typing import Any

import fine_tuned
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import objectives, state, step, systems
from scalelab.config.fields import make_options
from scalelab.formats import CAPITAL, sentence_tasks
from scalelab.interop import exporting, importing
from scalelab.nn.heads import token_logits
from scalelab.objectives import continual
from scalelab.systems import ernie
from scalelab.training import pretrained

TASKS = ("knowledge_mlm", "capitals", "token_document", "sentence_reorder", "sentence_distance")
FIELDS: dict[str, Any] = {"data__format": "sentence_tasks", "model__dropout_rate": 0.0}


def batch() -> dict[str, np.ndarray]:
    """A batch with labels; rows of the one kind have none of the other."""
    made, rng = tiny.batch(ernie, 0), np.random.default_rng(0)
    bits = rng.choice([0, CAPITAL, sentence_tasks.ELSEWHERE], made["tokens"].shape)
    is_text = made["tokens"] >= len(ernie.SPECIAL_TOKENS)
    rows = np.arange(tiny.BATCH)
    return made | {
        "word_labels": np.where(is_text, bits | sentence_tasks.TEXT, 0).astype(np.int32),
        "order": np.where(rows % 2, rng.integers(0, 6, tiny.BATCH), -1).astype(np.int32),
        "distance": np.where(rows % 2, -1, rng.integers(0, 3, tiny.BATCH)).astype(np.int32),
        "title": np.where(rows % 2, -1, rng.integers(0, 2, tiny.BATCH)).astype(np.int32),
        "marker": np.where(rows % 2, rng.integers(0, 6, tiny.BATCH), -1).astype(np.int32),
        "second_starts": np.full(tiny.BATCH, tiny.LENGTH, np.int32),
    }


class Given:
    """A model whose scores of labels are drawn by task."""

    def __call__(self, batch: Any, **_: Any) -> Any:
        return batch["tokens"], None

    def label_logits(self, hidden: Any, task: str, num_classes: int, of_text: bool) -> jax.Array:
        shape = (*hidden.shape[: 1 if of_text else 2], num_classes)
        return jnp.asarray(np.random.default_rng(len(task)).normal(size=shape), jnp.float32)


def test_losses_are_those_of_loops() -> None:
    """Capitals count at masks alone, token-document relation at all text, texts with a label."""
    given = batch()
    hidden = given["tokens"] == given["tokens"][:, 3:4]
    mask = systems.special_ids(ernie)["mask"]
    given["tokens"] = np.where(hidden, mask, given["tokens"])
    bits, text = given["word_labels"], given["word_labels"] & sentence_tasks.TEXT > 0
    expected = {
        "capitals": (bits & CAPITAL > 0, text & hidden, 2),
        "token_document": (bits & sentence_tasks.ELSEWHERE > 0, text, 2),
        "sentence_reorder": (given["order"], given["order"] >= 0, 6),
        "sentence_distance": (given["distance"], given["distance"] >= 0, 3),
        "relevance": (given["title"], given["title"] >= 0, 2),
        "discourse": (given["marker"], given["marker"] >= 0, 6),
    }
    for term in tiny.terms(ernie, "+".join(expected)):
        labels, counts, num_classes = expected[term.name]
        ctx = objectives.Pass(jax.random.key(0), accuracy=True)
        found = term.objective.losses(Given(), given, ctx)
        scores = Given().label_logits(given["tokens"], term.name, num_classes, labels.ndim == 1)
        scores = np.asarray(scores, np.float64)
        chances = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        total = -sum(
            chances[place][int(labels[place])]
            for place in np.ndindex(counts.shape)
            if counts[place]
        )
        np.testing.assert_allclose(found["loss"], (total, counts.sum()), rtol=1e-5)
        hits = (scores.argmax(-1) == labels)[counts].sum()
        assert found["accuracy"] == (hits, counts.sum()) and counts.sum() > 0


def test_the_ledger_of_the_paper() -> None:
    """Sun et al. 2020, table 7: four tasks of 50K steps. The other schedules are not that."""
    paper = [[20, 0, 0, 0], [10, 30, 0, 0], [10, 10, 40, 0], [10, 10, 10, 50]]
    found = continual.ledger(4, continual.Options((50_000,)))
    assert (found == 1000 * np.array(paper)).all()
    for other in ("sequential", "joint"):
        wrong = continual.ledger(4, continual.Options((50_000,), other))
        assert (wrong.sum(0) == 50_000).all() and (wrong != found).any()


def test_steps_are_those_of_the_ledger_stage_by_stage() -> None:
    """Also for uneven numbers; within a stage no task is ahead by more than its turn."""
    options = continual.Options((23, 7, 1, 40))
    counts = continual.ledger(4, options)
    steps, begin = np.frombuffer(continual.order(counts), np.uint8), 0
    assert np.bincount(steps).tolist() == [23, 7, 1, 40] == counts.sum(0).tolist()
    for stage, row in enumerate(counts):
        part = steps[begin : begin + row.sum()]
        begin += len(part)
        assert np.bincount(part, minlength=4).tolist() == row.tolist() and part.max() <= stage
        for task, number in enumerate(row):
            share = np.cumsum(part == task) - number * np.arange(1, len(part) + 1) / len(part)
            assert np.abs(share).max() <= 2
    with pytest.raises(ValueError, match=r"task_steps has 2 numbers.*3 tasks"):
        continual.ledger(3, continual.Options((1, 2)))


def test_a_step_trains_the_task_of_the_plan() -> None:
    """Weights of losses, gradients of heads and task ids by step, past the end of the plan too."""
    names = ("knowledge_mlm", "token_document", "sentence_distance")
    fields = FIELDS | {"objective": "+".join([*names, "continual"]), "system_options__num_tasks": 3}
    parts = tiny.parts("ernie", **fields, objective_options__task_steps=(4, 3, 2))
    mesh, tx = tiny.one_device(), tiny.keep_gradients(tiny.optimizer(parts.config))
    model = tiny.model(parts.net, parts.terms, tx)
    now, _ = state.create(model, max_len=tiny.LENGTH, seed=0, mesh=mesh)
    run = jax.jit(step.make_train_step(parts.net, parts.terms, tx))
    counts = continual.ledger(3, continual.Options((4, 3, 2)))
    plan = [*continual.order(counts)]
    for number, task in enumerate(plan + plan[-counts[-1].sum() :][:3]):
        before = now.replace(step=jnp.int32(number))
        after, metrics = run(before, batch(), jnp.float32(1e-3))
        weights = [float(metrics[f"{name}_loss"][1]) for name in names]
        assert [w > 0 for w in weights] == [i == task for i in range(3)]
        gradients = after.opt_state[0]
        rows = np.abs(gradients["embed"]["tasks"]["table"]).max(axis=1)
        assert (rows > 0).tolist() == [i == task for i in range(3)]
        head = np.abs(gradients["label_heads"]["sentence_distance"]["classifier"]["kernel"]).max()
        assert (head > 0) == (task == 2)
    evaluate = jax.jit(step.make_eval_step(parts.net, parts.terms))
    found, _ = evaluate(now.params, batch(), jax.random.key(0))
    assert all(found[f"{name}_loss"][1] > 0 for name in names)


def drawn(**options: int) -> tuple[Any, Any]:
    sizes = systems.Sizes(2, 12, 2, 20, tiny.LENGTH, dropout_rate=0.0)
    net = ernie.build(sizes, make_options(ernie, options), tiny.VOCAB)
    return net, tiny.draw(net, tiny.terms(ernie, "mlm"))


def test_task_0_of_zeros_is_the_plain_net() -> None:
    """No id is task 0; another task is another model."""
    net, params = drawn(num_tasks=3)
    table = params["embed"].pop("tasks")["table"]
    plain, _ = drawn()[0].apply({"params": params}, batch(), train=False)
    params["embed"]["tasks"] = {"table": table * np.array([[0], [1], [1]], np.float32)}
    for task in (None, 0, 1):
        given = batch() | ({} if task is None else {"task_ids": jnp.int32(task)})
        hidden, _ = net.apply({"params": params}, given, train=False)
        assert (np.abs(hidden - plain).max() < 1e-6) == (task != 1)


@pytest.mark.parity
@pytest.mark.parametrize("task", [0, 2])
def test_transformers_computes_the_same_with_task_ids(task: int) -> None:
    """ErnieForPreTraining: scores of tokens and of its two classes of texts, weights of 0.5."""
    torch = pytest.importorskip("torch")
    import peers

    named: dict[str, Any] = {"use_task_id": True, "task_type_vocab_size": 3}
    theirs, same = (
        peers.make("ernie", (2, 12, 2), tiny.LENGTH, name=name, vocab_size=tiny.VOCAB, **named)
        for name in ("ErnieForPreTraining", "ErnieForMaskedLM")
    )
    same.load_state_dict(theirs.state_dict(), strict=False)
    tensors = {name: x.detach().numpy() for name, x in theirs.state_dict().items()}
    given = batch() | {"second_starts": batch()["lengths"] // 2}
    places = np.arange(tiny.LENGTH)[None]
    ids = {
        "input_ids": given["tokens"],
        "attention_mask": places < given["lengths"][:, None],
        "token_type_ids": places >= given["second_starts"][:, None],
        "task_type_ids": np.full_like(given["tokens"], task),
    }
    with torch.no_grad():
        out = theirs(**{name: torch.tensor(np.asarray(x, np.int64)) for name, x in ids.items()})
    with tiny.in_double():
        params = peers.weights(same)
        params["label_heads"] = {
            "next": {
                ours: {"kernel": tensors[f"{name}.weight"].T, "bias": tensors[f"{name}.bias"]}
                for ours, name in (
                    ("pooler", "ernie.pooler.dense"), ("classifier", "cls.seq_relationship"),
                )
            }
        }  # fmt: skip
        sizes = systems.Sizes(2, 12, 2, 48, tiny.LENGTH, dropout_rate=0.0, dtype=jnp.float32)
        net = ernie.build(sizes, make_options(ernie, {"num_tasks": 3}), tiny.VOCAB)
        read = given | {"task_ids": jnp.int32(task)}
        hidden, _ = net.apply({"params": params}, read, train=False)
        tokens = net.apply({"params": params}, hidden, method=token_logits)
        texts = net.apply({"params": params}, hidden, "next", 2, True, method="label_logits")
        other, _ = net.apply({"params": params}, read | {"task_ids": jnp.int32(1)}, train=False)
    real = ids["attention_mask"]
    np.testing.assert_allclose(tokens[real], out.prediction_logits.numpy()[real], atol=1e-5)
    np.testing.assert_allclose(texts, out.seq_relationship_logits.numpy(), atol=1e-5)
    assert np.abs(other - hidden).max() > 0.1


@pytest.mark.slow
@pytest.mark.parity
def test_a_run_with_task_ids_goes_out_and_back(wikitext, cache_dir, tmp_path) -> None:
    """Its classes score as the run does for every task id; the run's heads for labels stay here."""
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    fields = {
        "data__format": "sentence_tasks", "objective": "knowledge_mlm+token_document+continual",
        "objective_options__task_steps": (2,), "system_options__num_tasks": 3,
    }  # fmt: skip
    run = tiny.write_run(tmp_path / "run", "ernie", wikitext, cache_dir, **fields)
    exporting.run(run, tmp_path / "out")
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    tokens = np.random.default_rng(0).integers(5, 300, (3, 16))
    batch = {"tokens": tokens, "lengths": np.full(3, 16), "examples": np.arange(3)}

    def ours(folder: pathlib.Path, task: int) -> np.ndarray:
        opened = pretrained.load(folder)
        given, params = batch | {"task_ids": jnp.int32(task)}, {"params": opened.params}
        hidden, _ = opened.net.apply(params, given, train=False)
        return np.asarray(opened.net.apply(params, hidden, method=token_logits))

    for kind in (transformers.AutoModelForMaskedLM, transformers.ErnieForPreTraining):
        model, info = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
        assert model.config.use_task_id and model.config.task_type_vocab_size == 3
        assert {name for name in info["missing_keys"] if "cls.predictions" in name} == set()
        assert not info["unexpected_keys"]
        found = []
        for task in range(3):
            ids = torch.full(tokens.shape, task)
            with torch.no_grad():
                out = model.eval()(torch.tensor(tokens), task_type_ids=ids)
            found.append(out[0].numpy())
            for folder in (run, tmp_path / "back"):
                np.testing.assert_allclose(ours(folder, task), found[task], atol=1e-5)
        assert min(np.abs(found[a] - found[b]).max() for a, b in ((0, 1), (1, 2))) > 1e-3
    fine_tuned.make(run, tmp_path / "tuned", "double")
    exporting.run(tmp_path / "tuned", tmp_path / "tuned-out")
    kind = transformers.ErnieForSequenceClassification
    _, info = kind.from_pretrained(tmp_path / "tuned-out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
