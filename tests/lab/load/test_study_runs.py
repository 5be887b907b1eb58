"""A study's file: names in it stay inside the study's folder."""

import json

import pytest
import study_folders

from scalelab.lab.load import study_runs

RUN = {"system": "bert", "shape": "2x8x1", "seed": 0}


@pytest.mark.parametrize(
    "name", ["..", ".", "../out", "/tmp/out", "a/b", "a\\b", "", "a\nb", "a\n"]
)
@pytest.mark.parametrize("place", ["study", "run", "task"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, place: str, name: str) -> None:
    study_folders.write_study(tmp_path, [RUN])
    path = tmp_path / "studies/invented.json"
    facts = json.loads(path.read_text())
    study_runs.read(tmp_path)
    if place == "study":
        facts["name"] = name
    elif place == "run":
        facts["runs"][0]["name"] = name
    else:
        facts["tasks"] = [name]
    path.write_text(json.dumps(facts))
    with pytest.raises(ValueError, match="invented.json is damaged"):
        study_runs.read(tmp_path)
