"""A study's file and plan: wrong fields are named, and names stay inside the study's folder."""

import dataclasses
import json

import pytest
import study_folders

from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import PlanEntry, StudyFile
from scalelab.runs import json_files

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


@pytest.mark.parametrize("wrong", [3, [], {}, None, "absent"], ids=str)
def test_a_field_of_a_wrong_type_is_named(tmp_path, wrong) -> None:
    """A field is refused by name, or reads as a value of the type that the file has."""
    study_folders.write_study(tmp_path, [RUN])
    whole = json.loads((path := tmp_path / "studies/invented.json").read_text())
    entry = PlanEntry("a", "main", 1, False, 2.0, 0.0, 0.0, 1.0, 9.0)
    (tmp_path / "plans").mkdir()
    for cls in (StudyFile, PlanEntry):
        for name in (field.name for field in dataclasses.fields(cls)):
            values = (whole if cls is StudyFile else dataclasses.asdict(entry)) | {name: wrong}
            if wrong == "absent":
                del values[name]
            plan = {"runs": [values]}
            (tmp_path / "plans/invented.json").write_text(json.dumps(plan))
            path.write_text(json.dumps(values))
            try:
                (found,) = (
                    [study_runs.read(tmp_path).facts] if cls is StudyFile
                    else study_runs.read_plan(tmp_path, "invented").values()
                )  # fmt: skip
            except ValueError as error:
                assert "invented.json" in str(error) and name in str(error)
            else:
                value = json_files.dump(getattr(found, name))
                assert wrong == "absent" or type(value) in (type(wrong), float), name
