"""The phases of a run, by hand."""

import dataclasses
import json

import reported_study

from scalelab.lab.load import study_runs
from scalelab.thesis.phases import read_phases


def test_phases_end_where_they_were_validated(tmp_path) -> None:
    """64 sequences a step in the short phase, 16 in the long one."""
    reported_study.write(tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=(), seeds=1)
    steps, longer = reported_study.STEPS, reported_study.LONG_STEPS - reported_study.STEPS
    (run,) = study_runs.read(tmp_path).runs
    found = [(phase.name, phase.steps, phase.sequences) for phase in read_phases(run)]
    assert found == [("short", steps, 64 * steps), ("long", longer, 16 * longer)]
    config = json.loads(json.dumps(run.config))
    config["long"]["max_len"] = 32  # phases of one length and different batches cannot be told
    assert read_phases(dataclasses.replace(run, config=config)) == []
    (run.folder / "metrics.jsonl").unlink()
    assert read_phases(study_runs.read(tmp_path).runs[0]) == []
