"""What must be said below a table or figure of a study: it never stands without it.

Sentences about scores, about what is unfinished or failed, about what was held equal, and every
departure that a system declares.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from scalelab.lab import shape_rules
from scalelab.lab.compare import matched
from scalelab.lab.evidence import base_shape
from scalelab.lab.reading.study_runs import BASELINE, Point, PretrainRun, Study
from scalelab.lab.reading.task_runs import TITLES, SeedRun
from scalelab.thesis import protocol

SCORES = {
    "large": "GLUE-Large: mean of MNLI-m, QQP and QNLI",
    "qqp": "QQP: accuracy",
    "cola": "CoLA: Matthews' correlation",
    "stsb": "STS-B: Pearson's correlation",
    "mrpc": "MRPC: F1",
}
DETECTABLE = (
    "Smallest detectable difference: a true difference to the first row that a two-sided test at 5%"
    " would find with power 80%; of all rows the largest. None where no run differs from another."
)
THESE_WEIGHTS = (
    " Of tasks it is for these weights only: rows have a single pre-training, and how much another"
    " would differ is not in it."
)
LOSSES = "Losses of different objectives, or on other tokens, do not compare."
LENGTHS = "Losses at different lengths do not compare: the length stands beside them."
OF_LOSS = ("objective", "tokenizer.kind", "tokenizer.vocab_size", "data.format")


def of_scores(
    study: Study,
    points: Sequence[Point],
    scores: Sequence[str],
    left_out: Sequence[str],
    has_published: bool,
    departing: Sequence[str] = (),
) -> list[str]:
    """What a table's numbers are, and which are not there.

    Args:
      study: what is compared.
      points: the table's rows.
      scores: keys of its columns of scores.
      left_out: titles of the columns whose tasks the study does not have.
      has_published: whether published numbers stand beside ours.
      departing: where the study is not the protocol (protocol.departures).
    """
    found = []
    of_tasks = [s for s in scores if s not in ("loss", "seconds")]
    if of_tasks:
        said = "; ".join(SCORES[s] for s in of_tasks if s in SCORES)
        found.append(f"Scores x 100 on dev sets, of the last step{'. ' + said if said else ''}.")
        found.append(f"Fine-tuned with recipe {adapted(study)}.")
    found += [_intervals(study, points, bool(of_tasks), len(of_tasks) < len(scores))]
    if "loss" in scores:
        said = ["Validation loss in nats, the last one at the longest length trained on."]
        said += [LOSSES] if len({loss_kind(p) for p in points}) > 1 else []
        said += [LENGTHS] if len({loss_length(p) for p in points} - {None}) > 1 else []
        found.append(" ".join(said))
    if "seconds" in scores:
        found.append("Seconds are of training alone, without compilation and evaluation.")
    if has_published:
        found.append("In round brackets: the published number.")
    elif study.facts["scale"] != "full":
        found.append(of_scale(study))
    elif departing:
        found.append(protocol.said(departing))
    if left_out:
        found.append(f"Not in this study, so left out: {', '.join(left_out)}.")
    return found


def of_scale(study: Study) -> str:
    """Why a study of another scale has no published numbers beside its own."""
    return f"Scale {study.facts['scale']}, not the full protocol: no published number compares."


def detectable(points: Sequence[Point]) -> str:
    """What the smallest detectable difference of a table is, and what it leaves out."""
    alone = any(len(point.finished) == 1 for point in points)
    return DETECTABLE + THESE_WEIGHTS * alone


def of_scaling(study: Study, points: Sequence[Point]) -> list[str]:
    """What compound scaling makes of a grid of one size: base, alpha and beta (protocol, 7.5.5).

    Args:
      study: what is compared.
      points: a table's rows; those of one system and variant are a grid.
    """
    found, facts = [], study.facts
    for system, variant in dict.fromkeys((p.system, p.variant) for p in points):
        own = [p for p in points if (p.system, p.variant) == (system, variant)]
        grid = {p.shape: p.runs for p in own}
        sizes = [shape.n_model for shape in grid]
        ended = all(p.finished == p.runs for p in own)
        if len(grid) < shape_rules.NUM_BEST or max(sizes) > shape_rules.EQUAL * min(sizes):
            continue
        best = base_shape.looked_at(grid, facts["tasks"], facts["finetune_seeds"]) if ended else []
        if best:
            base = base_shape.choose(grid, facts["tasks"], best)
            scaling = shape_rules.Scaling(base)
            why = "has the best mean score" if facts["tasks"] else "has the least"
            found.append(
                f"Compound scaling of {system}: of {_listed(best)}, those of the least mean loss,"
                f" {base} {why}, however near the others; phi = log2(L H^2) = {scaling.phi:.3f},"
                f" alpha = L^(1/phi) = {scaling.alpha:.4f}, beta = H^(1/phi) = {scaling.beta:.4f};"
                f" one step of phi up is {scaling.at(scaling.phi + 1)}."
            )
    return found


def of_study(
    study: Study, points: Sequence[Point], footnotes: Iterable[str] = (), tasks: Iterable[str] = ()
) -> list[str]:
    """What holds below every table: the state of its runs, what is equal, what departs.

    Args:
      study: what is compared.
      points: the table's rows.
      footnotes: said at the end.
      tasks: those that its numbers come from.
    """
    facts = study.facts
    found = [*_runs(study, points, tasks)]
    found.append(f"{matched.said(study, points)} Runs may differ in {_listed(facts['free'])}.")
    if facts.get("allow"):
        found.append(f"The study lets these fields differ too: {_listed(facts['allow'])}.")
    for variant in dict.fromkeys(p.variant for p in points):
        fields = (facts.get("variants") or {}).get(variant)
        if variant != BASELINE:
            found.append(f"{variant}: {_listed(fields or ['no change'])}.")
    for system in dict.fromkeys(p.system for p in points):
        declared = departures(study, system)
        if declared:
            said = "; ".join(f"{field} = {given} ({source})" for field, given, source in declared)
            found.append(f"{system} departs from the control: {said}.")
        fields = (facts.get("system_fields") or {}).get(system)
        if fields:
            found.append(f"The study sets for {system}: {_listed(fields)}.")
    return [*found, *footnotes]


def adapted(study: Study) -> str:
    """How nets are fine-tuned, in words: the recipe, and the fields that the study sets on it."""
    fields = study.facts["finetune"].get("fields")
    return study.facts["recipe"] + (f" and {_listed(fields)}" if fields else "")


def loss_kind(point: Point) -> tuple[Any, ...]:
    """What the losses of a row are of: those of rows that differ in it do not compare."""
    config = point.runs[0].config
    return tuple(_at(config, field, None) for field in OF_LOSS)


def loss_length(point: Point) -> int | None:
    """The length that a row's validation loss is at; None while nothing is finished."""
    evals = [(run.result or {}).get("eval") or {} for run in point.finished]
    return max((int(length) for of_run in evals for length in of_run), default=None)


def departures(study: Study, system: str) -> list[tuple[str, str, str]]:
    """What a system declares: field, value and source.

    Where its runs have another value, because the study or a budget of another kind sets it, the
    value says so.
    """
    declared = (study.facts.get("departures") or {}).get(system, [])
    config = next((p.runs[0].config for p in study.points if p.system == system), {})
    found = []
    for departure in declared:
        given = value(departure["value"])
        actual = _at(config, departure["field"], departure["value"])
        if value(actual) != given:
            given += ", here not set" if actual is None else f", here {value(actual)}"
        found.append((departure["field"], given, departure["source"]))
    return found


def unfinished(points: Iterable[Point]) -> list[str]:
    """Names of the pre-trainings that are not finished, nor damaged."""
    return [r.name for p in points for r in p.runs if not r.finished and not r.damaged]


def damaged(study: Study, points: Iterable[Point]) -> list[str]:
    """Names of the runs whose folders are damaged, with what is wrong, without machine paths."""
    return [
        f"{run.name}: {relative(study, run.damaged)}"
        for point in points for run in point.runs if run.damaged
    ]  # fmt: skip


def relative(study: Study, text: str) -> str:
    """A message without the path of the folder of all runs."""
    return text.replace(f"{study.workdir}/", "")


def value(given: Any) -> str:
    """A config value as it is written: null, true, 0.1, a word."""
    return given if isinstance(given, str) else json.dumps(given)


def _runs(study: Study, points: Sequence[Point], tasks: Iterable[str]) -> list[str]:
    """What is unfinished, damaged, missing, failed or degenerate behind the rows."""
    found = []
    planned = sum(len(point.runs) for point in points)
    waiting, broken = unfinished(points), damaged(study, points)
    if waiting:
        some = f"{len(waiting)} of {planned} pre-trainings are unfinished"
        found.append(f"{some}: {_listed(waiting)}.")
    if broken:
        found.append(f"{len(broken)} of {planned} runs are damaged: {'; '.join(broken)}.")
    done = [run for point in points for run in point.finished if _finetuned(study, run)]
    for task in (t for t in study.facts["tasks"] if done and t in tasks):
        title = TITLES.get(task, task)
        without = [r.name for r in done if task not in r.tasks or not r.tasks[task].finished]
        if without:
            found.append(f"{title}: no finished fine-tuning of {_listed(without)}.")
        of_seeds = [run for r in done if task in r.tasks for run in r.tasks[task].runs]
        failed = [r for r in of_seeds if r.failed]
        names = (relative(study, f"{r.folder}: {r.failed}") for r in failed)
        for word, runs in (
            ("unfinished", [r for r in of_seeds if r.unfinished]),
            (f"failed: {'; '.join(names)}", failed),
        ):
            if runs:
                found.append(f"{title}: {len(runs)} of {len(of_seeds)} fine-tunings {word}.")
        collapsed = {
            r.name: sum(map(_degenerate, r.tasks[task].runs)) for r in done if task in r.tasks
        }
        if any(collapsed.values()):
            some = f"{sum(collapsed.values())} of {len(of_seeds)} fine-tunings"
            names = _listed(f"{num} of {name}" for name, num in collapsed.items() if num)
            found.append(f"{title}: {some} degenerate, and counted in: {names}.")
        # Subsets, capped training sets, absent splits: never passed off as the whole.
        remarks = dict.fromkeys(x for run in of_seeds for x in run.result.get("remarks", ()))
        found += [f"{remark}." for remark in remarks]
    return found


def _degenerate(run: SeedRun) -> bool:
    return run.finished and bool(run.result.get("degenerate"))


def _finetuned(study: Study, run: PretrainRun) -> bool:
    """Whether the study fine-tunes all nets of the run's stage; of "best:k", those begun."""
    wanted = {r["name"]: r.get("finetune", "all") for r in study.facts["runs"]}[run.name]
    return wanted == "all" or (wanted != "none" and bool(run.tasks))


def _intervals(study: Study, points: Sequence[Point], of_tasks: bool, of_runs: bool) -> str:
    most = max((len(p.finished) for p in points), default=0)
    num = study.facts["finetune_seeds"]
    few = f"{num} fine-tuning seeds and " if num > 1 else "one fine-tuning seed and "
    found = []
    if of_tasks:
        over = "" if most < 2 else f"up to {most} pre-training seeds, "
        found.append(
            f"Multi-Bootstrap over {over}{few}dev examples together"
            + ("" if over else "; pre-training was not repeated, and its chance is not in it")
        )
    if of_runs:
        found.append("of loss and time Student's over pre-training seeds; [-]: one run has none")
    return f"95% intervals in square brackets: {'; '.join(found)}."


def _at(config: Any, field: str, otherwise: Any) -> Any:
    """The value of a dotted field; `otherwise` if there is no such field."""
    for name in field.split("."):
        if not isinstance(config, dict) or name not in config:
            return otherwise
        config = config[name]
    return config


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names))
