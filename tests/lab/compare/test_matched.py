"""What is held equal, and what may be said of it."""

import dataclasses
import json

import pytest
import reported_study

from scalelab.lab.compare import comparability, matched
from scalelab.lab.load import study_runs

STEPS, LONG = reported_study.STEPS, reported_study.LONG_STEPS - reported_study.STEPS


def study(tmp_path, clock: str = "tokens", **facts):
    reported_study.write(
        tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=(), matched=clock, **facts
    )
    return study_runs.read(tmp_path)


def with_tokens(run: study_runs.PretrainRun, tokens: int):
    return dataclasses.replace(run.result, tokens=tokens)


def shorter(made: study_runs.Study, part: float, variant: str) -> study_runs.Study:
    """The runs of a variant came to a part only of every clock."""
    points = []
    for point in made.points:
        scale = part if point.variant == variant else 1
        runs = tuple(
            dataclasses.replace(r, result=with_tokens(r, int(r.result.tokens * scale)))
            for r in point.runs
        )
        points.append(dataclasses.replace(point, runs=runs))
    return dataclasses.replace(made, points=tuple(points))


def test_examples_are_sequences_read(tmp_path) -> None:
    """64 a step in the short phase, 16 in the long one, by hand."""
    made = study(tmp_path, "examples")
    assert matched.reading(made.runs[0], "examples") == 64 * STEPS + 16 * LONG == 59_200
    assert matched.describe(made, made.points) == "Held equal: examples, to 5%."
    assert comparability.check(made) == []
    (made.runs[0].folder / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match="examples cannot be told"):
        comparability.check(study_runs.read(tmp_path))


def test_phases_of_one_length_and_different_batches_are_not_told_apart(tmp_path) -> None:
    made = study(tmp_path, "examples")
    config = json.loads(json.dumps(made.runs[0].config))
    config["long"]["max_len"] = 32
    with pytest.raises(ValueError, match="one length and different batches"):
        matched.reading(dataclasses.replace(made.runs[0], config=config), "examples")


def test_variants_that_are_about_the_clock_are_told_with_their_numbers(tmp_path) -> None:
    variants = ("baseline", "half_steps")
    made = shorter(study(tmp_path, variants=variants), 0.5, "half_steps")
    tokens = made.points[0].runs[0].result.tokens
    expected = f"baseline {tokens:,.0f}; half_steps {tokens / 2:,.0f}."
    said = matched.describe(made, made.points)
    assert said == f"Held equal: tokens, to 5%, within each variant alone: {expected}"
    assert matched.describe(made, made.points[:1]) == "Held equal: tokens, to 5%."
    assert comparability.check(made) == []  # between variants it is what the study is about


def test_what_is_not_equal_is_not_called_so(tmp_path) -> None:
    made = study(tmp_path)
    one, two = made.runs
    less = dataclasses.replace(two, result=with_tokens(two, 1_000_000))
    point = dataclasses.replace(made.points[0], runs=(one, less))
    other = dataclasses.replace(made, points=(point,))
    said = matched.describe(other, other.points)
    assert said.startswith("Not held equal: tokens, 1,000,000 to ") and "Held equal" not in said
    with pytest.raises(ValueError, match="matched: "):
        comparability.check(other)


def test_nothing_finished_yet(tmp_path) -> None:
    made = study(tmp_path, "secs", unfinished=("bert-2x16x2-seed0", "bert-2x16x2-seed1"))
    assert matched.describe(made, made.points) == "To be held equal: seconds."
