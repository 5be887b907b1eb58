"""The cost model: planted coefficients are found, and counts are what they say."""

import dataclasses
import re
import types

import a_study
import jax
import numpy as np
import pytest

from scalelab.nn.stack import UNROLLED_LAYERS
from scalelab.studies import cost, cost_steps, expand

RNG = np.random.default_rng(0)


def planted(num: int, secs: np.ndarray, noise: float = 0.0) -> list[cost.Measurement]:
    made = []
    for i in range(num):
        counts = 10.0 ** RNG.uniform([9, 6, 6, 6, 5, 6, 0], [11, 8, 8, 8, 7, 8, 0])
        factor = 1 + noise * RNG.standard_normal()
        made.append(cost.Measurement(f"m{i}", counts, float(counts @ secs) * factor, 1e6, 1000))
    return made


# A machine faster than the guess, its parts in other proportions.
OTHER = 0.5 * cost.GUESS * np.array([1.0, 0.6, 0.8, 2.0, 0.7, 1.5, 3.0])


def test_planted_coefficients_predict_new_steps() -> None:
    model = cost.fit(planted(8, OTHER, noise=0.02))
    new = planted(50, OTHER)
    errors = [abs(model.step_secs(m.features) / m.secs - 1) for m in new]
    assert np.median(errors) < 0.05
    assert model.error < 0.05


def test_few_measurements_stay_near_the_guess() -> None:
    """With one measurement the machine's speed is found, and the parts keep their proportions."""
    (one,) = planted(1, 3 * cost.GUESS)
    model = cost.fit([one])
    np.testing.assert_allclose(model.secs, 3 * cost.GUESS, rtol=1e-6)


def test_a_disturbed_step_makes_nothing_free() -> None:
    """The wider net was measured too fast: as if its products cost nothing. They still do."""
    counts = [[1e9, 2e6, 3e5, 3e6, 1e6, 0, 1.0], [4e9, 4e6, 3e5, 3e6, 2e6, 0, 1.0]]
    data = [cost.Measurement("m", np.array(c), 0.05, 1e6, 1) for c in counts]
    secs = cost.fit(data).secs
    rest = [secs[i] / cost.GUESS[i] for i in range(7)]
    assert min(rest) > 0.05 * max(rest)
    wider = np.array([1.6e10, 8e6, 3e5, 3e6, 4e6, 0, 1.0])
    assert cost.fit(data).step_secs(wider) > 2 * cost.fit(data).step_secs(np.array(counts[0]))


def test_the_error_of_what_was_left_out_is_that_of_new_steps() -> None:
    one, two = planted(1, OTHER), planted(2, OTHER)
    assert cost.fit(one).left_out is None
    by_hand = [cost.fit([two[1 - i]]).step_secs(m.features) / m.secs - 1
               for i, m in enumerate(two)]  # fmt: skip
    assert cost.fit(two).left_out == np.sqrt(np.mean(np.square(by_hand)))


def test_a_wrong_count_would_be_noticed() -> None:
    """Without the term for logits the same data cannot be explained."""
    secs = OTHER * [1, 1, 1, 5, 1, 1, 1]
    data = planted(12, secs)
    blind = [cost.Measurement(m.label, m.features * [1, 1, 1, 0, 1, 1, 1], m.secs, 1e6, 1)
             for m in data]  # fmt: skip
    assert cost.fit(blind).error > 5 * cost.fit(data).error


def step_of(system: str, name: int, counts: list[float]) -> types.SimpleNamespace:
    """Stands for a built run with one phase."""
    net = types.SimpleNamespace(num_heads=2, width=name, num_layers=1)
    forward = types.SimpleNamespace(train=counts[0])
    phases = ((4, 8, forward, np.array(counts)),)
    config = types.SimpleNamespace(system=system, net=net)
    return types.SimpleNamespace(config=config, phases=phases)


def test_steps_to_measure_are_unlike_each_other() -> None:
    """One of each system, then the extremes: of three mixtures the middle one is left out."""
    plain, mixed, scored = ([1e9, 1e6, s, 1e5, 1e5, 0.0, 1.0] for s in (1e4, 2e5, 4e5))
    runs = [step_of("a", i, c) for i, c in enumerate((plain, mixed, scored))]
    chosen = [b.config.net.width for b, _ in cost_steps.choose(runs)]
    assert chosen[:2] == [0, 2]
    runs += [step_of("b", 9, plain)]
    assert {b.config.net.width for b, _ in cost_steps.choose(runs)[:3]} == {0, 9, 2}
    alike = [step_of("a", i, [c * (1 + i / 50) for c in plain]) for i in range(3)]
    assert len(cost_steps.choose(alike)) == 1


def test_the_dearest_step_is_measured_before_the_minute_is_over() -> None:
    """Small steps alone leave the price of a multiplication open."""
    small, large, unlike = ([s * c for c in (1e9, 1e6, x, 1e5, 1e5, 0)] + [1.0]
                            for s, x in ((1, 1e5), (40, 1e5), (2, 1e7)))  # fmt: skip
    runs = [step_of(system, 1, small) for system in "abc"] + [step_of("c", 2, large)]
    runs += [step_of("a", 3, unlike)]
    chosen = [(b.config.system, b.config.net.width) for b, _ in cost_steps.choose(runs)]
    assert chosen == [("a", 1), ("b", 1), ("c", 1), ("c", 2), ("a", 3)]


def test_a_kept_calibration_is_of_this_machine_and_these_steps(tmp_path) -> None:
    model, path = cost.fit(planted(2, cost.GUESS)), tmp_path / "calibration.json"
    model = dataclasses.replace(model, beside_bytes=7.0)
    cost.save(path, model, {"host": "here"}, ["m0", "m1", "left out"])
    kept = cost.load(path, {"host": "here"}, ["left out", "m0"])
    np.testing.assert_array_equal(kept.secs, model.secs)
    assert kept.beside_bytes == 7.0
    assert cost.load(path, {"host": "there"}, ["m0"]) is None
    assert cost.load(path, {"host": "here"}, ["m2"]) is None


def test_counts_by_hand(tmp_path) -> None:
    made = a_study.make()
    run = expand.runs(made, tmp_path)[1]  # gpt2, 2 heads, width 8, 1 layer, batch 8 x 32, V 300
    built = cost_steps.build_run(run.config)
    ((size, length, forward, counts),) = built.phases
    assert (size, length) == (8, 32)
    body = 6 * 8 * 32 * (4 * 16 * 16 + 2 * 16 * 32)  # a width of 8 in a vector of 16
    assert counts[0] == body + 3 * (forward.attention + forward.head)
    assert forward.body == 2 * 8 * 32 * (4 * 8 * 8 + 2 * 8 * 32)
    assert counts[1] == 8 * 32 * 1 * (16 + 32)
    assert counts[2] == 8 * 1 * 2 * 32**2
    assert counts[3] == 8 * 31 * 300  # every token but the first is predicted
    assert counts[4] == built.num_params
    assert counts[5] == 0 and counts[6] == 1


@pytest.mark.parametrize(("num_layers", "remat", "looped"), [
    (UNROLLED_LAYERS, "none", False), (UNROLLED_LAYERS + 1, "none", True), (2, "full", True),
])  # fmt: skip
def test_layers_in_a_loop_cost_more(num_layers, remat, looped, tmp_path) -> None:
    """The count is there exactly where the compiled net's own layers are a loop."""
    shapes = (f"2x8x{num_layers}",)
    made = a_study.make(
        pretrain__machine__remat=remat, stages={"main": a_study.stage(shapes=shapes)}
    )
    built = cost_steps.build_run(expand.runs(made, tmp_path)[0].config)
    counts = built.phases[0][3]
    assert counts[5] == (counts[1] if looped else 0)
    traced = str(jax.make_jaxpr(
        lambda params, batch: built.plan.net.apply({"params": params}, batch, train=False)
    )(built.plan.state.params, built.plan.batch(32, 8)))  # fmt: skip
    (unrolled,) = re.findall(rf"length={num_layers}\n.*?unroll=(\d+)", traced, re.DOTALL)
    assert (int(unrolled) == 1) == looped
