"""Published numbers stand beside runs of the protocol alone; what departs from it is named."""

import csv
import io
import json
import math
import re

import numpy as np
import pytest
import reported_study
import task_folders
import tiny

from scalelab.lab import tables
from scalelab.lab.compare import comparability
from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.load import study_runs
from scalelab.lab.tables import Value
from scalelab.studies import expand, spec
from scalelab.thesis import protocol, published, size_figure

WIKITEXT = "corpus=wikitext:/w"
SHAPES = ("2x128x2", "2x192x2")
# Steps of a phase of BERT: 6 epochs of what Table 7.1 has; 110 and 376 tokens a sequence.
STEPS, LONG_STEPS = 6 * 1_007_708 // 64, 6 * 115_240 // 16


class Flat:
    """Scores: every score is one half."""

    part = "tasks"

    def value(self, row, score):
        return Estimate(0.5, 0.4, 0.6, 0.01, math.inf, np.zeros(1))

    def difference(self, a, b, score):
        return self.value(a, score)

    def remarks(self, scores):
        return []


def write(folder, arguments=WIKITEXT, share=1.0, remarks=(), name="thesis_7_5_1", **changes):
    """The first runs of a study at scale full, finished in as many steps; its other fields."""
    values = tiny.config_module(f"studies/{name}").get_config(arguments).to_dict()
    if name == "thesis_7_5_1":
        values["stages"]["main"] |= {"systems": ("bert",), "shapes": SHAPES}
        values["tables"] = ("large:width", "data")
    for field, value in changes.items():
        *groups, last = field.split("__")
        place = values
        for group in groups:
            place = place[group]
        place[last] = value
    made = spec.resolve(values)
    expand.write(made, expand.expand_runs(made), folder, "")
    for run in study_runs.read(folder).runs:
        finish(run, share)
        for seed in (0,) if made.finetune.tasks else ():
            where = run.folder / "tasks/qnli"
            task_folders.write_run(where, "qnli", seed, 5, init_digest=run.name, system="bert")
            path = where / f"seed{seed}/result.json"
            result = json.loads(path.read_text()) | {"remarks": list(remarks)}
            path.write_text(json.dumps(result))
    return study_runs.read(folder)


def finish(run: study_runs.PretrainRun, share: float) -> None:
    """Writes what a finished run leaves, of a corpus of some share of WikiText-103's."""
    folder, net = run.folder, run.config["model"]
    short = round(share * STEPS)
    steps = (short, short + round(share * LONG_STEPS))
    tokens = (7040 * short, 7040 * short + 6016 * round(share * LONG_STEPS))
    folder.mkdir(parents=True)
    lines = [
        {"step": s, "tokens": t, "flops": 1.0, "seconds": 1.0, "eval/loss": 3.0, "eval/max_len": n}
        for s, t, n in zip(steps, tokens, (128, 512), strict=True)
    ]
    (folder / "config.json").write_text(json.dumps(run.config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = {
        "status": "completed", "system": run.config["system"], "seed": run.config["seed"],
        "shape": {"A": net["num_heads"], "H": net["width"], "L": net["num_layers"]},
        "n_model": 12 * net["num_layers"] * net["width"] ** 2, "steps": steps[-1],
        "tokens": tokens[-1], "flops": 1.0,
        "seconds": 1.0, "eval": {"128": {"loss": 3.0}, "512": {"loss": 3.0}},
        "phases": [
            {"max_len": length, "examples": num, "tokens": average * num}
            for length, num, average in (
                (128, round(share * 1_007_708), 110), (512, round(share * 115_240), 376)
            )
        ],
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))


def shown(study, footnotes=()) -> tuple[list, str, list[str]]:
    """Published numbers of the large tasks and of the data, the notes, and a figure's legend."""
    found = published.read_scores()
    table, *_ = reported_study.build_tables(study, Flat(), published=found, footnotes=footnotes)
    cells = [cell.published for row in table.rows for cell in row if isinstance(cell, Value)]
    beside = None if protocol.departures(study, footnotes) else found
    figure = size_figure.draw(study, Flat(), beside)
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    notes = reported_study.build_notes(study, Flat(), published=found, footnotes=footnotes)
    return [x for x in cells if x is not None], "\n".join(notes), words


@pytest.mark.parametrize("name", [f"thesis_7_5_{k}" for k in (1, 2, 3, 4, 5)] + ["formats"])
def test_the_protocols_own_studies_depart_in_nothing(name: str, tmp_path) -> None:
    module = tiny.config_module(f"studies/{name}")
    for arguments in (WIKITEXT, f"{WIKITEXT},seeds=3,data=/glue"):
        made = spec.resolve(module.get_config(arguments).to_dict())
        folder = tmp_path / str(len(arguments))
        expand.write(made, expand.expand_runs(made), folder, "")
        assert protocol.departures(study_runs.read(folder)) == []


def test_of_the_protocol_every_published_number_is_shown(tmp_path) -> None:
    official = ("QQP empty texts: 3 in train", "QQP broken lines left out: 2 in train")
    cells, notes, legend = shown(write(tmp_path, remarks=official))
    assert cells[:3] == [0.654, 0.59, 0.602]  # GLUE-Large, MNLI-m, MNLI-mm of Table 7.2
    assert len(cells) == 2 * 7
    assert "In round brackets" in notes
    assert "bert, published" in legend


def test_table_7_1_is_of_one_epoch_with_its_numbers_beside(tmp_path) -> None:
    for name, share in (("whole", 1.0), ("half", 0.5)):
        study = write(tmp_path / name, share=share)
        table = reported_study.build_tables(study, Flat(), published=published.read_scores())[1]
        lines = list(csv.DictReader(io.StringIO(tables.csv(table))))
        printed = [(line["epoch_tokens_published"], line["epoch_average_published"],
                    line["epoch_sequences_published"]) for line in lines]  # fmt: skip
        if share == 0.5:
            assert printed == [("", "", "")] * 3
            assert not any("Table 7.1" in note for note in table.notes)
            continue
        assert printed[:2] == [("110888186", "110.04", "1007708"), ("43274856", "375.52", "115240")]
        assert printed[2] == ("", "", "")
        assert float(lines[0]["epoch_sequences"]) == pytest.approx(1_007_708, rel=1e-4)
        assert float(lines[1]["epoch_tokens"]) == pytest.approx(115_240 * 376, rel=1e-3)
        assert float(lines[0]["epochs"]) == pytest.approx(STEPS * 64 / 1_007_708)
        assert float(lines[1]["tokens"]) == 6016 * LONG_STEPS
        assert "epoch_tokens_low" not in lines[0]
        assert "110.00 (110.04)" in tables.markdown(table.texts(), table.num_names)
        assert "[-]" not in tables.markdown(table.texts(), table.num_names)
        assert "110.00 (110.04)" in tables.latex(table, "x")
        assert any("Table 7.1" in note for note in table.notes)


DEPARTING = {
    "no arguments": (dict(arguments=""), "data.corpus is builtin .protocol: WikiText-103.; "
                     "tokenizer.vocab_size is 20000 .protocol: 30000."),
    "fields": (dict(fields=("optim.learning_rate=2e-4",)),
               "optim.learning_rate is 0.0002 .protocol: 0.0001.[.]"),
    "a system's fields": (dict(system_fields={"bert": ("objective=mlm",)}), "objective is mlm "),
    "recipe": (dict(finetune__recipe="layerwise"), "finetune.optim.layer_decay is 0.8 .*finetune."
               "recipe is layerwise"),
    "a grid": (dict(finetune__recipe="turc"), "finetune.optim.learning_rate is chosen on dev"),
    "one task's": (dict(finetune__fields=("qnli.epochs=2",)), "finetune.epochs is 2.0 "),
    "carved": (dict(remarks=("QNLI train 10,475 of 104,743",)), "QNLI train 10,475 of 104,743"),
    "other text in its layout": (dict(share=0.5), "an epoch of bert has 503,854 sequences of 128 "
                                 ".protocol: 1,007,708, WikiText-103."),
}  # fmt: skip


@pytest.mark.parametrize("name", DEPARTING)
def test_what_departs_is_named_and_no_published_number_shown(name: str, tmp_path) -> None:
    changes, expected = DEPARTING[name]
    study = write(tmp_path, **changes)
    cells, notes, legend = shown(study)
    assert cells == [] and "this study differs: " in notes
    assert re.search(expected, "; ".join(protocol.departures(study)) + ".")
    assert "round brackets" not in notes and "Table 7" not in notes
    assert legend == ["bert"]


def test_what_was_allowed_to_differ_departs(tmp_path) -> None:
    study = write(tmp_path)
    cells, notes, _ = shown(study, [f"{comparability.ALLOWED}: numerics: version 2 in a."])
    assert cells == [] and "config.allow" in notes
    cells, notes, _ = shown(study, ["Not known to be equal: no run tells its texts."])
    assert cells and "this study differs" not in notes


def test_a_row_that_the_protocol_has_not_is_no_departure(tmp_path) -> None:
    """Beside the protocol's rows, a study may have others: they have no published number."""
    more = {"default": (), "mine": ("optim.learning_rate=1e-2",)}
    study = write(tmp_path, variants=more)
    path = tmp_path / "studies/thesis_7_5_1.json"
    facts = json.loads(path.read_text())
    values = facts["runs"][0] | {"name": "bert-2x128x2-mine-seed0", "variant": "mine"}
    values["config"] = values["config"] | {"mask_rate": 0.3}
    path.write_text(json.dumps(facts | {"runs": [*facts["runs"], values]}))
    study = study_runs.read(tmp_path)
    assert len(study.points) == 3 and protocol.departures(study) == []
