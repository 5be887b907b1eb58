"""Models of other runs in a loss: from the command line to the trained model, and what is
refused."""

import dataclasses
import functools
import json
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import flax.linen as nn
import in_process
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scratch
from train_lab import Lab, Record, kill_at

from scalelab import fill_mask, objectives, state, systems, train
from scalelab.config import pretraining as config_lib
from scalelab.eval import word_order
from scalelab.resources import flops
from scalelab.training import beginning, checkpoint, pretrained


@dataclasses.dataclass(frozen=True)
class Distil:
    """The mean squared distance of the hidden states from a teacher's."""

    name: ClassVar[str] = "distil"
    samples: ClassVar[bool] = False
    predicts: ClassVar[None] = None

    teacher: Any

    def prepare(self, batch: Any, rng: jax.Array) -> Any:
        return batch

    def losses(self, model: Any, batch: Any, ctx: objectives.Pass) -> objectives.Pairs:
        wanted, _ = self.teacher.apply({"params": ctx.frozen["teacher"]}, batch, train=False)
        gaps = jnp.square(ctx.hidden(model, batch) - wanted).mean((1, 2))
        counts = (batch["lengths"] > 0).astype(jnp.float32)
        return {"loss": (jnp.sum(gaps * counts), jnp.sum(counts))}


class Guided(nn.Module):
    """A model that adds a teacher's hidden states to its own."""

    net: nn.Module
    teacher: nn.Module

    def __call__(self, batch: Any, *, train: bool, step: Any = None) -> tuple[jax.Array, None]:
        hidden, _ = self.net(batch, train=train, step=step)
        params = self.get_variable("frozen", "teacher")
        return hidden + self.teacher.apply({"params": params}, batch, train=False)[0], None

    def token_features(self, hidden: jax.Array) -> Any:
        return self.net.token_features(hidden)


Make = Callable[..., config_lib.Config]
Refused = Callable[[Callable[[], Any]], str]


@pytest.fixture(autouse=True, scope="module")
def distil() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        scratch.add(
            patch, "objectives", "distil",
            NEEDS=(), HEADS=(), SEES=None, FROZEN=("teacher",),
            BASELINE=objectives.Baseline("loss", 1.0, 0.0),
            make=lambda setting, options: Distil(setting.frozen["teacher"]),
        )  # fmt: skip
        roberta = systems.load("roberta")
        scratch.add(patch, "systems", "guided", **vars(roberta) | {
            "FROZEN": ("teacher",),
            "build": lambda *given, frozen: Guided(roberta.build(*given), frozen["teacher"]),
        })  # fmt: skip
        yield


@pytest.fixture(scope="module")
def original(pretrained_runs) -> pathlib.Path:
    """The teacher of `whole`; do not write into it."""
    return pretrained_runs("roberta")


@pytest.fixture
def teacher(original: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of it."""
    return shutil.copytree(original, tmp_path / "teacher")


@pytest.fixture(scope="module")
def student(lab: Lab) -> Callable[..., config_lib.Config]:
    def make(teacher: pathlib.Path | None, **more: Any) -> config_lib.Config:
        given = {"objective": "mlm+0.5*distil", "long__example_rate": 0.0}
        given["machine__frozen"] = teacher and f"teacher={teacher}"
        given["machine__checkpoint_every_steps"] = 2
        return lab.config("system=roberta,steps=4", **(given | more))

    return make


@pytest.fixture(scope="module")
def whole(lab, student, original, tmp_path_factory) -> Record:
    """A distilled run that nothing stops."""
    return lab.run(tmp_path_factory.mktemp("distilled") / "run", student(original))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture) -> Refused:
    return functools.partial(scratch.refused, capsys)


def test_a_stopped_run_continues_with_its_teacher(lab, whole, student, original, tmp_path) -> None:
    _, resumed = lab.killed(tmp_path, student(original), at=3)
    assert list(resumed.states) == [3, 4]  # step 2 was saved
    resumed.assert_equal(whole)


def test_a_system_reads_a_teacher(lab, student, original, teacher, tmp_path, refused) -> None:
    """It is trained and continued bit for bit; other programs refuse its model."""
    config, folder = student(teacher, system="guided", objective="mlm"), tmp_path / "run"
    whole = lab.run(tmp_path / "whole", config)
    _, resumed = lab.killed(folder, config, at=3)
    assert list(resumed.states) == [3, 4] and whole.states[4].params.keys() == {"net"}
    resumed.assert_equal(whole)
    opened, found = pretrained.load(original), resumed.states[4]
    jax.tree.map(np.testing.assert_array_equal, found.frozen["teacher"], opened.params)
    saved = json.loads((folder / "config.json").read_text())
    assert saved["frozen"] == f"teacher={pretrained.tree_digest(opened.params)}"

    @jax.jit
    def losses(params: Any) -> Any:
        ctx = objectives.Pass(jax.random.key(0), frozen={"teacher": params})
        batch = objectives.prepare(whole.batches[0], again.terms, ctx.rng)
        return objectives.forward(again.net, again.params, batch, again.terms, ctx)[0]["mlm"]

    again = pretrained.load(folder)
    other = losses(jax.tree.map(jnp.zeros_like, opened.params))["loss"][0]
    assert abs(losses(opened.params)["loss"][0] - other) > 1e-3  # the model reads it
    message = refused(lambda: in_process.run(fill_mask, [f"--run={folder}", "a [MASK] b"]))
    assert "guided, whose model reads the model of another run (teacher) beside a text" in message
    shutil.rmtree(teacher / "checkpoints" / "3")
    assert re.search("another config.*frozen", refused(lambda: lab.run(folder, config)), re.DOTALL)


def test_the_teacher_stays_as_it_was(whole: Record, original: pathlib.Path) -> None:
    opened, last = pretrained.load(original), whole.states[4]
    for found in whole.states.values():
        jax.tree.map(np.testing.assert_array_equal, found.frozen["teacher"], opened.params)
    # It has no moments, and checkpoints leave it out.
    sizes = [leaf.size for leaf in jax.tree.leaves(last.opt_state) if leaf.ndim]
    assert sum(sizes) == 2 * flops.count_parameters(last.params)
    kept = checkpoint.Checkpoints(whole.workdir / "checkpoints", None)
    assert not kept.restore(None)[0].get("frozen")
    kept.close()
    saved = json.loads((whole.workdir / "config.json").read_text())
    assert saved["frozen"] == f"teacher={pretrained.tree_digest(opened.params)}"
    evaluated = whole.result["eval"]["32"]
    total = evaluated["mlm_loss"] + 0.5 * evaluated["distil_loss"]
    np.testing.assert_allclose(evaluated["loss"], total, rtol=1e-6)


def test_other_programs_open_a_distilled_run(whole, student, original, tmp_path) -> None:
    in_process.run(fill_mask, [f"--run={whole.workdir}", "a [MASK] b"])
    found = word_order.losses(whole.workdir, num_examples=8, seed=0)
    assert found.keys() == {"mlm", "distil"}
    config = student(None, objective="mlm", machine__init=str(whole.workdir))
    _, start, _ = beginning.begin(config, tmp_path / "next")
    assert start is not None and not start.fresh and not start.unused


def test_a_run_needs_the_teacher_that_it_began_with(
    lab: Lab, student: Make, teacher: pathlib.Path, tmp_path: pathlib.Path, refused: Refused
) -> None:
    folder, config = tmp_path / "run", student(teacher)
    lab.run(folder, config, before=kill_at(3))
    teacher.rename(tmp_path / "moved")
    message = refused(lambda: pretrained.load(folder))
    assert re.search(f"needs the models it learned from: .*frozen, teacher: {teacher}", message)
    assert f"frozen, teacher: {teacher}" in refused(lambda: lab.run(folder, config))
    shutil.copytree(tmp_path / "moved", teacher)
    shutil.rmtree(teacher / "checkpoints" / "3")  # step 0 is left
    message = refused(lambda: lab.run(folder, config))
    assert re.search("another config.*frozen", message, re.DOTALL)


def test_a_teacher_that_is_missing_is_named(student, teacher, tmp_path, refused) -> None:
    def call(config: Any) -> str:
        return refused(lambda: train.train(train.pretraining(config, tmp_path / "run")))

    assert "set --config.machine.frozen=teacher=RUN" in call(student(None))
    other = student(None, machine__frozen=f"techer={teacher}")
    assert re.search("named 'teacher'.*names techer", call(other))
    more = student(None, machine__frozen=f"teacher={teacher},judge={teacher}")
    users = "neither system 'roberta' nor objective 'mlm' nor .*=teacher=RUN"
    assert re.search(f"names 'judge', which {users}", call(more))
    assert "'teacher', which neither" in call(student(teacher, objective="mlm"))
    assert "system 'guided' needs a" in call(student(None, system="guided", objective="mlm"))
    assert "frozen, teacher: " in call(student(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="machine.frozen=teacher=RUN"):
        state.make_model(student(None))


def test_a_teacher_with_another_tokenizer_is_refused(student, teacher, tmp_path, refused) -> None:
    path = teacher / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    first, second = [piece for piece, i in vocab.items() if i in (50, 51)]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    path.write_text(json.dumps(content))
    (teacher / "environment.json").unlink()  # as if it had this tokenizer from its start
    message = refused(lambda: train.train(train.pretraining(student(teacher), tmp_path / "run")))
    assert "has another tokenizer (300 pieces there, 300 here, id 50 is" in message
    assert not (tmp_path / "run" / "config.json").exists()
    smaller = student(teacher, tokenizer__vocab_size=290)
    message = refused(lambda: train.train(train.pretraining(smaller, tmp_path / "run")))
    assert "300 pieces there, 290 here" in message
