"""Mixtures of tasks: rates, draws, tasks as text on one model, and a start from their weights."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats
from test_finetune import config
from test_multitask import left, train
from test_words import STANDS, one_bucket, planted, translator  # noqa: F401

from scalelab.finetuning import joint, warm_start
from scalelab.finetuning.run import TaskRun
from scalelab.tasks.batches import TaskBatches
from scalelab.tasks.task import Splits, as_text
from scalelab.training.pretrained import load_trained

SIZES = [10, 100, 1000]
SHARED = {"sharing": "hard", "sharing_tasks": "a,b,c"}


@pytest.mark.parametrize(("fields", "weights"), [
    ({"mixing": "proportional"}, [1, 10, 100]),
    ({"mixing": "proportional", "mixing_limit": 50}, [1, 5, 5]),
    ({"mixing": "temperature", "mixing_temperature": 1.0}, [1, 10, 100]),
    ({"mixing": "temperature", "mixing_temperature": 2.0}, [1, 10**0.5, 10]),
    ({"mixing": "temperature", "mixing_temperature": 2.0, "mixing_limit": 40}, [1, 2, 2]),
    ({"mixing": "temperature", "mixing_temperature": 1e9}, [1, 1, 1]),
    ({"mixing": "equal"}, [1, 1, 1]),
])  # fmt: skip
def test_rates_are_those_of_the_paper(cache_dir, fields, weights) -> None:
    rates = joint.mixing_rates(SIZES, config(cache_dir, **SHARED, **fields))
    np.testing.assert_allclose(rates, np.array(weights) / sum(weights), rtol=1e-7)


@pytest.mark.parametrize(("fields", "message"), [
    ({"mixing": "even"} | SHARED, "mixing = 'even'.*'equal'"),
    ({"mixing": "equal"}, "config.sharing"),
    ({"mixing": "equal", "sharing": "hard", "sharing_tasks": "rte"}, "two or more tasks"),
    ({"mixing": "temperature"} | SHARED, "mixing_temperature"),
    ({"mixing": "temperature", "mixing_temperature": 0.0} | SHARED, "mixing_temperature"),
    ({"mixing": "equal", "mixing_temperature": 2.0} | SHARED, "mixing_temperature"),
    ({"mixing": "equal", "mixing_limit": 8} | SHARED, "mixing_limit"),
    ({"mixing": "proportional", "mixing_limit": 0} | SHARED, "mixing_limit"),
])  # fmt: skip
def test_what_is_no_mixture_is_refused(cache_dir, fields, message) -> None:
    with pytest.raises(ValueError, match=message):
        config(cache_dir, **fields)


@pytest.fixture
def prepare(pretrained_runs, cache_dir, tmp_path):
    """prepare(folder, sizes, **fields) -> TaskRuns of planted tasks as text."""
    own = {
        "epochs": 2.0, "batch_size": 8, "max_len": 60, "head.kind": "words",
        "machine.tracker": None, "machine.checkpoint_every_steps": 4, "sharing": "hard",
        "sharing_tasks": "first,second", "mixing": "proportional",
    }  # fmt: skip

    def make(folder: str, *sizes: int, init: Any = None, **fields: Any) -> list[TaskRun]:
        start, made = warm_start.open_start(str(init or pretrained_runs("gpt2"))), []
        for place, size in enumerate(sizes):
            task = as_text(dataclasses.replace(STANDS, name=("first", "second", "third")[place]))
            splits = Splits(planted(size, place), {"dev": planted(9, 5)}, {})
            given = config(cache_dir, **(own | fields))
            made.append(TaskRun(task, splits, start, given, tmp_path / folder / task.name))
        return made

    return make


def test_the_draws_have_their_rates(prepare) -> None:
    runs = prepare("a", 16, 64, epochs=200.0)
    order = joint.draw_order(runs, 0)
    assert len(order) == 200 * (2 + 8)
    low, high = stats.binom.interval(1 - 1e-4, len(order), 16 / 80)
    assert low <= (order == 0).sum() <= high
    np.testing.assert_array_equal(order, joint.draw_order(runs, 0))
    assert (order != joint.draw_order(runs, 1)).any()
    with pytest.raises(ValueError, match="no batch among the"):
        joint.draw_order(prepare("a", 8, 4096, epochs=0.01), 0)
    with pytest.raises(ValueError, match="batch_size"):
        joint.draw_order([*prepare("a", 16), *prepare("b", 16, batch_size=4)], 0)


def test_a_killed_mixture_continues_and_begins_another_run(prepare, stop_at) -> None:
    whole, cut = prepare("whole", 16, 40), prepare("cut", 16, 40)
    expected = train(whole)
    equal = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)  # noqa: E731
    equal(*expected)  # the model is one
    order = joint.draw_order(whole, 0)
    assert [run.result(0)["steps"] for run in whole] == np.bincount(order).tolist()
    stop_at(TaskBatches, "__call__", 7)
    with pytest.raises(KeyboardInterrupt):
        train(cut)
    equal(train(cut), expected)
    for ours, theirs in zip(cut, whole, strict=True):
        assert left(ours) == left(theirs)

    first = whole[0].folder(0)
    alone = {"sharing": None, "sharing_tasks": None, "mixing": None, "epochs": 1.0}
    (run,) = prepare("after", 24, init=first, **alone)
    equal(run.first_params(0)["body"], load_trained(first)["body"])
    train([run])
    assert any("fine-tuned as text on first,second" in x for x in run.result(0)["remarks"])
    assert run.result(0)["init_digest"] != whole[0].result(0)["init_digest"]
