"""A study's file and plan: wrong fields are named, and names stay inside the study's folder."""

import dataclasses
import json

import pytest
import study_folders

from scalelab.lab.load import study_runs
from scalelab.records import json_files
from scalelab.records.study_file import StudyFile
from scalelab.studies import progress
from scalelab.studies.progress import PlanEntry

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
    changes = {"study": {"name": name}, "run": {"runs": [facts["runs"][0] | {"name": name}]},
               "task": {"tasks": [name]}}  # fmt: skip
    path.write_text(json.dumps(facts | changes[place]))
    with pytest.raises(ValueError, match="invented.json is damaged"):
        study_runs.read(tmp_path)


@pytest.mark.parametrize("wrong", [3, [], {}, None, "absent"], ids=str)
def test_a_field_of_a_wrong_type_is_named(tmp_path, wrong) -> None:
    """A field is refused by name, or reads as a value of the type that the file has."""
    study_folders.write_study(tmp_path, [RUN])
    (tmp_path / "plans").mkdir()
    file, plan = tmp_path / "studies/invented.json", tmp_path / "plans/invented.json"
    entry = vars(PlanEntry("a", 2.0, 0.0, 0.0, 9.0))
    for cls, values in ((StudyFile, json.loads(file.read_text())), (PlanEntry, entry)):
        for name in (field.name for field in dataclasses.fields(cls)):
            changed = {k: v for k, v in (values | {name: wrong}).items() if v != "absent"}
            try:
                if cls is PlanEntry:
                    plan.write_text(json.dumps({"runs": [changed]}))
                    (found,) = progress.read_plan(tmp_path, "invented").values()
                else:
                    file.write_text(json.dumps(changed))
                    found = study_runs.read(tmp_path).facts
            except ValueError as error:
                assert "invented.json" in str(error) and name in str(error)
            else:
                value = json_files.dump(getattr(found, name))
                assert wrong == "absent" or type(value) in (type(wrong), float), name
