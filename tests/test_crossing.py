"""A loss that crosses examples is that of the whole batch everywhere, or refused."""

import math
import pathlib
from collections.abc import Iterator
from typing import Any

import guests
import numpy as np
import pytest
import scratch
import several_devices
import subjects
from train_lab import Lab

from scalelab import objectives, step
from scalelab.helpers import names
from scalelab.records import baselines as baseline_lib


@pytest.fixture(autouse=True, scope="module")
def halves() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        guests.add(patch, "halves")
        yield


@pytest.mark.slow
def test_two_devices_have_the_loss_of_the_whole_batch(tmp_path: pathlib.Path) -> None:
    process = several_devices.start(tmp_path, 2, 1, "none", "2x1x1", "--", "halves")
    several_devices.finish(process)
    found = dict(np.load(tmp_path / "halves-2x1x1.npz"))
    expected = subjects.get("halves").arrays(1)
    np.testing.assert_allclose(found["metrics/loss"], expected["metrics/loss"], rtol=1e-5)
    for name in (name for name in expected if name.startswith("gradients/")):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_parts_of_a_batch_are_refused(lab: Lab, tmp_path: pathlib.Path, capsys: Any) -> None:
    given = {"machine__num_microbatches": 4, "long__example_rate": 0.0}
    config = lab.config("system=halves,steps=2", **given)
    message = scratch.refused(capsys, lambda: lab.run(tmp_path / "run", config))
    assert "config.machine.num_microbatches = 4" in message and "'halves'" in message
    assert not (tmp_path / "run").exists()


def test_a_run_validates_with_full_batches_and_chance_depends_on_their_size(
    lab: Lab, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, real = [], step.compile_evaluation

    def compile_evaluation(*given: Any) -> Any:
        made = list(given[-1])
        sizes.extend(int((batch["lengths"] > 0).sum()) for batch in made)
        return real(*given[:-1], made)

    monkeypatch.setattr(step, "compile_evaluation", compile_evaluation)
    more = {"long__example_rate": 0.0, "optim__learning_rate": 1e-9, "eval__num_examples": 10_000}
    config = lab.config("system=halves,steps=1", **more)
    result = lab.run(tmp_path / "run", config).result
    assert len(sizes) > 1 and {*sizes} == {8}
    monkeypatch.setattr(objectives, "module_names", names.module_names)
    last, baselines = result["eval"]["32"], objectives.load_baselines()
    for size, loss, is_chance in ((8, 2.05, True), (8, 1.9, False), (4, 1.35, True)):
        assert last["batch_size"] == 8
        given = last | {"halves_loss": loss, "batch_size": size}
        (made,) = baseline_lib.check_baselines(("halves",), {}, given, baselines)
        assert (
            f"against {math.log(size):.3g} of chance" in made.failure
        ) == is_chance and not made.lacking
