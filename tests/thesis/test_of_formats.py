"""f3 and f4 are of equal unique text: held to what the runs say that they have read."""

import json

import pytest
import reported_study
import study_folders
from planted import PLANTED, Invented

from scalelab.lab.compare import claims, hypotheses
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.thesis import comparison

VARIANTS = ("mlm_on_sentences", "mlm_on_pairs_unique")


class Reading(Invented):
    """Invented scores whose rows read so many passes, by variant; others one."""

    read: dict[str, list[float | None]] = {}

    def passes(self, row):
        return self.read.get(row.variant, [1.0])


@pytest.mark.parametrize(("passes", "verdict"), [
    ([1.0, 1.0], "confirmed"),
    ([1.04, 1.0], "confirmed"),
    ([1.06], "undecided"),  # beyond comparability.TOLERANCE
    ([1.0, 1.2], "undecided"),  # one of its runs
    ([1.58], "undecided"),
    ([None], "undecided"),
])  # fmt: skip
@pytest.mark.parametrize(
    ("name", "variant"), [("f3", "mlm_on_pairs_unique"), ("f4", "pairs_unique")]
)
def test_unequal_text_decides_nothing(name, variant, passes, verdict) -> None:
    scores = Reading(PLANTED[name][0], 0.001)
    scores.read = {variant: passes}
    (found,) = claims.decide(hypotheses.state(comparison, scores, [name]))
    assert found.verdict == verdict
    if passes == [None]:
        assert f"bert 2x128x2 {variant} do not" in found.why
    elif verdict == "undecided":
        assert "unique text" in found.why
        assert found.cases == ()


def test_below_one_pass_a_finding_says_what_that_means() -> None:
    for read, num in ((0.01, 1), (0.99, 0), (3.0, 0)):
        scores = Reading(PLANTED["f3"][0], 0.001)
        scores.read = {x: [read] for x in VARIANTS}
        (found,) = claims.decide(hypotheses.state(comparison, scores, ["f3"]))
        assert found.verdict == "confirmed"
        assert sum("below one pass" in remark for remark in found.remarks) == num


def study(tmp_path, pass_tokens: dict[str, int | None], epochs: float | None = None):
    """Two variants with two seeds each that read 1,000 tokens; the pairs have fewer mistakes."""
    wrong = dict(zip(VARIANTS, (30, 5), strict=True))
    runs = [
        {"system": "bert", "shape": "2x32x2", "seed": seed, "variant": variant,
         "tasks": {task: {0: wrong[variant] + seed} for task in ("mnli", "qqp", "qnli")}}
        for variant in VARIANTS for seed in (0, 1)
    ]  # fmt: skip
    study_folders.write_study(tmp_path, runs)

    def edit(run: dict) -> None:
        run["config"] |= {"optim": {"total_epochs": epochs}}
        path = tmp_path / "runs" / run["name"] / "result.json"
        tokens = pass_tokens[run["variant"]]
        phases = [] if tokens is None else [{"max_len": 128, "examples": 10, "tokens": tokens}]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"phases": phases}))

    reported_study.edit_runs(tmp_path, edit)
    scores = StudyScores(study_runs.read(tmp_path))
    (found,) = claims.decide(hypotheses.state(comparison, scores, ["f3"]))
    return found


def test_passes_are_read_from_the_runs(tmp_path) -> None:
    """1.58 times the tokens of a corpus whose pairs repeat it 1.3 times are not equal text."""
    equal = study(tmp_path / "a", dict(zip(VARIANTS, (1000, 1010), strict=True)))
    assert equal.verdict == "confirmed"
    unequal = study(tmp_path / "b", dict(zip(VARIANTS, (1000, 820), strict=True)))
    assert unequal.verdict == "undecided"
    assert "mlm_on_pairs_unique 1.22 and " in unequal.why
    assert "mlm_on_sentences 1" in unequal.why


def test_runs_from_before_passes_were_told(tmp_path) -> None:
    none = dict.fromkeys(VARIANTS)
    assert "do not record" in study(tmp_path / "a", none).why
    assert "do not record" in study(tmp_path / "c", dict.fromkeys(VARIANTS, 0)).why
