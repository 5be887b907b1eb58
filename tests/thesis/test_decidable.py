"""Every hypothesis that a study names can come out either way there, with the seeds that it plans.

The scores are invented and without noise, so what stays undecided is so by the study's design: a
shape that is not there, or a single number of which nobody knows how much another would differ.
"""

import pytest
import tiny
from planted import PLANTED, Invented

from scalelab.eval.score_names import LARGE, TASK_SCORES
from scalelab.lab.compare import claims, hypotheses
from scalelab.studies import expand, spec
from scalelab.thesis import comparison
from scalelab.thesis.published import Row

ARGUMENTS = ("scale=full", "scale=full,seeds=2", "scale=medium", "scale=small", "scale=tiny")
# What the protocol's section observes, and must be decidable whatever the scale.
OBSERVED = {
    "thesis_7_5_1": {"1a", "1b", "2a", "2b", "2d"},
    "thesis_7_5_2": {"3", "4a"},
    "thesis_7_5_3": {"6"},
    "thesis_7_5_4": {"7a", "7b"},
    "thesis_7_5_5": {"4a"},
    "formats": {"f1", "f2", "f3", "f4", "f5"},
}


def load(name: str, arguments: str) -> spec.StudySpec:
    module = tiny.config_module(f"studies/{name}")
    return spec.resolve(module.get_config(arguments).to_dict())


def invent(made: spec.StudySpec, truth, path, without=()) -> Invented:
    """What the study would find: scores only of what it fine-tunes, as many numbers as seeds."""
    planned = [run for run in expand.expand_runs(made) if str(run.shape) not in without]
    rows = {Row(r.system, r.shape, r.variant): made.stages[r.stage].finetune for r in planned}
    tuned = {row for row, rule in rows.items() if rule == "all"}
    tasks = set(made.finetune.tasks)
    needs = {"large": {TASK_SCORES[part][0] for part in LARGE}, "cola": {"cola"}}

    def there(row, score):
        scored = score not in needs or (row in tuned and needs[score] <= tasks)
        return truth(row, score) if scored else None

    return Invented(there, 0.0, made.seeds, rows=list(rows))


def verdicts(made: spec.StudySpec, name: str, path, without=()) -> tuple[str, str]:
    """Verdicts on scores where the hypothesis holds, and where it does not."""
    stated = [hypotheses.state(comparison, invent(made, truth, path, without), [name])
              for truth in PLANTED[name]]  # fmt: skip
    found = [claims.decide(own)[0] for own in stated]
    return found[0].verdict, found[1].verdict


@pytest.mark.parametrize("name", OBSERVED)
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_what_a_study_names_it_can_confirm_and_refute(name, arguments, tmp_path) -> None:
    made = load(name, arguments)
    observed = set() if arguments == "scale=full" else OBSERVED[name]  # the protocol has one seed
    assert observed <= set(made.hypotheses) <= set(comparison.HYPOTHESES)
    found = {x: verdicts(made, x, tmp_path) for x in made.hypotheses}
    assert found == dict.fromkeys(made.hypotheses, ("confirmed", "refuted"))


@pytest.mark.parametrize(("study", "arguments", "name", "without"), [
    ("thesis_7_5_2", "scale=full,seeds=2", "3", ("2x384x2", "2x544x2")),
    ("thesis_7_5_2", "scale=full,seeds=2", "4b", ("2x544x2",)),
    ("thesis_7_5_2", "scale=small", "3", ("2x64x8",)),
    ("thesis_7_5_2", "scale=small", "4b", ("1x256x2",)),
    ("thesis_7_5_1", "scale=tiny", "2b", ("2x24x2",)),
])  # fmt: skip
def test_without_one_shape_a_study_cannot(study, arguments, name, without, tmp_path) -> None:
    """So the test above would tell: these rows are what the hypotheses rest on."""
    assert "undecided" in verdicts(load(study, arguments), name, tmp_path, without)


@pytest.mark.parametrize(("study", "arguments", "name"), [
    ("thesis_7_5_1", "scale=full", "1a"), ("thesis_7_5_3", "scale=full", "6"),
    ("thesis_7_5_5", "scale=full", "4a"), ("thesis_7_5_5", "scale=full,seeds=2", "5"),
    ("thesis_7_5_2", "scale=tiny", "4b"),
])  # fmt: skip
def test_what_is_left_out_could_not_be_decided(study, arguments, name, tmp_path) -> None:
    made = load(study, arguments)
    assert name not in made.hypotheses
    assert verdicts(made, name, tmp_path) == ("undecided", "undecided")
