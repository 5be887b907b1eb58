"""The one parser of run folders: any content of any file is read, or refused with its reason."""

import json
import pathlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalelab.config.fields import Departure
from scalelab.config.pretraining import Shape
from scalelab.lab.show import card
from scalelab.records import json_files, run_files
from scalelab.records.run_files import RunResult, TaskResult, Unreadable

CONFIG = {"system": "bert", "seed": 0, "model": {"num_heads": 2, "width": 8, "num_layers": 2},
          "data": {"corpus": "a"}, "tokenizer": {"kind": "bpe", "vocab_size": 9}}  # fmt: skip
RUN = RunResult(
    system="bert", shape=Shape(2, 8, 2), n_model=Shape(2, 8, 2).n_model, seed=0, steps=10,
    tokens=20, flops=3.0, seconds=0.5, params=7, eval={"8": {"loss": 4.5, "step": 10}},
    data_hash="a1", corpus=run_files.Corpus(2, 30), phases=(run_files.PhaseData(8, 4, 30),),
    departures=(Departure("objective", "mlm", "paper"),),
)  # fmt: skip
TASK = TaskResult(
    system="bert", shape=Shape(2, 8, 2), n_model=1536, seed=1, task="cola",
    eval={"dev": {"matthews": None}}, remarks=("short",), data={"train": "b2"},
)  # fmt: skip
FILES = ("config.json", "result.json", "environment.json", "metrics.jsonl")
LINE = {"step": 10, "tokens": 20, "flops": 3.0, "seconds": 0.5, "eval/loss": 4.5, "eval/max_len": 8}

numbers = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), True, 1e308])
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def write(folder: pathlib.Path, result: RunResult | TaskResult | None = RUN) -> pathlib.Path:
    """Makes a whole run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    task = {"task": result.task} if result else {}
    (folder / "config.json").write_text(json.dumps(CONFIG | task))
    (folder / "environment.json").write_text(json.dumps({"numerics": 2, "cpus": 2}))
    (folder / "metrics.jsonl").write_text(json.dumps(LINE) + "\n" + '{"step": 11, "tok')
    if result:
        run_files.write_result(folder, result)
    return folder


@pytest.mark.parametrize("result", [RUN, TASK, None])
def test_reads_what_the_loops_write(tmp_path, result):
    record = run_files.read_run(write(tmp_path / "run", result))
    assert (record.result is None) == (result is None)
    if result:
        assert json_files.dump(record.result) == json_files.dump(result)
    validated = run_files.validations(record.lines)
    assert [line["step"] for line in validated] == [10]  # the cut line is left out
    assert record.environment.numerics_versions == "2"
    assert record.shape.n_model == 12 * 2 * 8**2


def mutate(text: str, draw) -> bytes:
    """Changes the content of a file: a field's value, a cut, or anything at all."""
    kind = draw(st.sampled_from(["value", "cut", "bytes", "deep", "digits"]))
    if kind == "value":
        content = json.loads(text.split("\n")[0] if text[1] == '"' else text)
        place, name = content, draw(st.sampled_from(sorted(content)))
        if isinstance(content[name], dict) and content[name] and draw(st.booleans()):
            place = content[name]
            name = draw(st.sampled_from(sorted(place)))
        place[name] = draw(values)
        return json.dumps(content).encode() + b"\n"
    if kind == "cut":
        return text.encode()[: draw(st.integers(0, len(text)))] + b"\n"
    if kind == "deep":
        return b'{"a":' + b"[" * 100_000
    if kind == "digits":
        return b'{"step": ' + b"9" * draw(st.sampled_from([25, 400, 5000])) + b"}\n"
    return draw(st.binary(max_size=20))


@given(data=st.data())
@settings(max_examples=150, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
def test_reads_a_damaged_folder_or_names_the_file(tmp_path, data):
    folder = write(tmp_path / "run", data.draw(st.sampled_from([RUN, TASK])))
    name = data.draw(st.sampled_from(FILES))
    path = folder / name
    path.write_bytes(mutate(path.read_text(), data.draw))
    try:
        record = run_files.read_run(folder)
    except Unreadable as error:
        assert error.path == path and error.reason
        return
    assert isinstance(record.name, str) and isinstance(record.shape, Shape) and card.write(folder)
    for line in run_files.validations(record.lines):
        assert abs(line["eval/loss"]) < float("inf")


def test_refuses_a_later_format_and_an_unknown_status(tmp_path):
    folder = write(tmp_path / "run")
    content = json.loads((folder / "result.json").read_text())
    for field, value in (("format", run_files.FORMAT + 1), ("status", "begun")):
        (folder / "result.json").write_text(json.dumps(content | {field: value}))
        with pytest.raises(Unreadable, match=field):
            run_files.read_run(folder)
