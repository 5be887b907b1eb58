"""What must be said of the seconds that a study's pre-trainings took."""

from scalelab.lab.reading import run_files
from scalelab.lab.reading.study_runs import Study

UNEVEN = 0.05  # of the speed of runs that should be equally fast


def remarks(study: Study) -> list[str]:
    """That they are of different machines, or of runs of one row at different speeds."""
    found = []
    if len(machines := _machines(study)) > 1:
        found.append(f"Seconds are of different machines: {'; '.join(machines)}.")
    spreads = _spreads(study)
    label = max(spreads, key=spreads.__getitem__, default="")
    if label and spreads[label] > UNEVEN:
        found.append(
            f"Runs of one row took steps at speeds up to {spreads[label]:.0%} apart ({label}): what"
            " rests on seconds is no surer than that."
        )
    return found


def _machines(study: Study) -> list[str]:
    """The devices that finished runs were trained on."""
    folders = [run.folder for run in study.runs if run.finished]
    read = [run_files.read_json(folder / "environment.json", []) for folder in folders]
    return sorted({run_files.machine(found) for found, there in read if there})


def _spreads(study: Study) -> dict[str, float]:
    """Row -> by what share its fastest run took more steps a second than its slowest."""
    found = {}
    for row in study.points:
        results = [run.result for run in row.finished if run.result]
        rates = [r["steps"] / r["seconds"] for r in results if r.get("seconds")]
        if len(rates) > 1:
            found[row.label] = max(rates) / min(rates) - 1
    return found
