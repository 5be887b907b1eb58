"""What is packed in results/ goes on being used: skipped by `run`, and told by `report`."""

import csv
import pathlib
import re
import shutil

import pytest
import tiny

from scalelab.config import pretraining as config_lib
from scalelab.lab import laws
from scalelab.lab.load import study_runs
from scalelab.lab.show import report
from scalelab.records import archive
from scalelab.studies import expand, jobs, spec

PACKED = tiny.ROOT / "results/thesis_small"
STUDIES = sorted(path.stem for path in (PACKED / "studies").glob("*.json"))


@pytest.fixture
def workdir(tmp_path):
    """A folder whose runs are the packed ones."""
    shutil.copytree(PACKED / "studies", tmp_path / "studies")
    (tmp_path / archive.NAME).symlink_to(PACKED / archive.NAME)
    return tmp_path


def done(workdir, name: str) -> set[str]:
    return {job.name for job in jobs.read(workdir, name)[1] if job.state == jobs.DONE}


@pytest.mark.parametrize("name", STUDIES)
def test_a_packed_study_is_gone_on_with(name: str, workdir) -> None:
    """Its runs have the names and configs of today, and what was done is done."""
    before = study_runs.read(workdir, name)
    finished = done(workdir, name)
    assert finished and before.facts.stages
    corpus = before.runs[0].config["data"]["corpus"]
    data = before.facts.finetune.data
    arguments = f"scale=small,corpus={corpus}" + (f",data={data}" if data else "")
    values = tiny.config_module(f"studies/{name}").get_config(arguments).to_dict()
    values["finetune"]["scratch"] = False  # as they were run
    made = spec.resolve(values)
    planned = expand.expand_runs(made)
    assert {run.name for run in planned} == {run.name for run in before.runs}
    configs = {run.name: run.config for run in before.runs}
    for run in planned:
        assert config_lib.science_diff(run.config, configs[run.name]) == []
    expand.write(made, planned, workdir, "")
    assert done(workdir, name) == finished


FOLDERS = sorted(path.parent for path in PACKED.parent.glob("*/studies") if path.parent != PACKED)
# Fields that got a default other than None after these runs, which do not continue.
SINCE = {
    "family": {"system_options.num_segments"},
}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_fields_of_packed_runs_are_those_of_today(folder: pathlib.Path) -> None:
    """A new field with a default other than None would change the config of older runs."""
    found = set()
    for path in (folder / "studies").glob("*.json"):
        for run in study_runs.read(folder, path.stem).runs:
            found.update(config_lib.science_diff(config_lib.resolve(run.config), run.config))
    assert {line.partition(":")[0] for line in found} == SINCE.get(folder.name, set())


# All but one have fine-tunings, whose reports take longer.
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x != "thesis_7_5_3")) for x in STUDIES]
)
def test_a_packed_study_still_reports(name: str, workdir, tmp_path) -> None:
    """With the hypotheses of the stored report."""
    report.make(workdir, name, tmp_path / "out")
    made, stored = (
        verdicts(folder / "tables") for folder in (tmp_path / "out", PACKED / f"reports/{name}")
    )
    assert made and made.keys() == stored.keys()


def test_the_results_page_has_the_numbers_of_the_report() -> None:
    """GLUE-Large and SST-2 of each shape and system, with intervals."""
    report_text = (PACKED / "reports/thesis_7_5_1/report.md").read_text()
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in report_text.splitlines()]
    tables = [cells for cells in lines if len(cells) == 14 and cells[1] == "2"]
    found = {(f"2x{c[2]}x{c[3]}", c[0]): (c[6], c[12]) for c in tables}
    assert len(found) == 15
    readme = (tiny.ROOT / "docs/results.md").read_text()
    assert "| BERT-style, GLUE-Large | RoBERTa-style | GPT-2-style | BERT-style, SST-2 |" in readme
    shown = [line.split("|") for line in readme.splitlines()
             if line.startswith("| 2x") and line.count("|") == 8]  # fmt: skip
    assert len(shown) == 5
    for _, shape, *scores, _ in shown:
        row = [found[shape.strip(), system] for system in ("bert", "roberta", "gpt2")]
        assert [s.strip() for s in scores] == [large for large, _ in row] + [
            sst2 for _, sst2 in row
        ]
    for study in ("7_5_1", "7_5_2"):
        made = verdicts(PACKED / f"reports/thesis_{study}/tables")
        assert {*made.values()} == {"not testable at this scale"}


@pytest.mark.parametrize("page", ("README.md", "docs/results.md"))
def test_every_interval_stands_in_a_report_that_its_row_names(page: str) -> None:
    path = tiny.ROOT / page
    found = 0
    for line in path.read_text().splitlines():
        links = re.findall(r"\]\(([^)#]+/report\.md)\)", line)
        if not links or not line.startswith("|"):
            continue
        text = "\n".join((path.parent / link).read_text() for link in links)
        for number in re.findall(r"-?[\d.]+ \[[^\]]+\]", line):
            assert number in text, (line[:60], number)
            found += 1
    assert found > 2


def test_the_law_of_the_sizes_on_the_page_is_that_of_the_packed_runs(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (tiny.ROOT / "docs/results.md").read_text()
    row = next(line for line in page.splitlines() if "scalelab.lab.laws" in line)
    (arguments,) = re.findall(r"`python -m scalelab.lab.laws ([^`]+)`", row)
    folder, *others = arguments.split()
    given = [str(tiny.ROOT / folder), *others, f"--figure={tmp_path}/law.svg"]
    laws.main(laws.parser().parse_args(given))
    lines = capsys.readouterr().out.splitlines()
    for start in ("a  ", "held out"):
        cells = re.split("  +", next(line for line in lines if line.startswith(start)))
        assert f"{cells[1]} {cells[2]}" in row and (len(cells) == 3 or cells[3] in row)


def verdicts(folder: pathlib.Path) -> dict[tuple[str, ...], str]:
    """The verdict of each row of a report's hypotheses, by its first three cells."""
    with (folder / "hypotheses.csv").open() as file:
        return {tuple(row.values())[:3]: row["verdict"] for row in csv.DictReader(file)}
