"""A system whose model reads a source: programs give it one, or refuse it by its declaration."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import a_study
import guests
import in_process
import numpy as np
import pytest
import small_encdec
from scipy import special
from train_lab import Lab, kill_at

from scalelab import fill_mask, formats, sample, systems
from scalelab.config import cli
from scalelab.decode import loop, stepper
from scalelab.decode.choose import Rules
from scalelab.eval import evaluation, lm, sentence_scores, suites, word_order
from scalelab.helpers import names
from scalelab.interop import exporting
from scalelab.lab.show import card
from scalelab.nn.layer import PreNorm
from scalelab.resources import host
from scalelab.studies import spec
from scalelab.training import pretrained


@pytest.fixture(autouse=True, scope="module")
def translator() -> Iterator[None]:
    """A system with an encoder and a decoder; a text is its own source."""
    with pytest.MonkeyPatch.context() as patch:
        guests.add(patch, "translator")
        yield


@pytest.fixture(scope="module")
def run(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run that was stopped once."""
    one_phase = {"long__example_rate": 0.0, "machine__checkpoint_every_steps": 2}
    one_phase |= {"system_options__stddev": 0.5}
    config = lab.config("system=translator,steps=4", **one_phase)
    folder = tmp_path_factory.mktemp("translator") / "run"
    killed = lab.run(folder, config, before=kill_at(3))
    record = lab.run(folder, config)
    assert list(record.states) == [3, 4] and record.batches[3]["source"].shape == (8, 32)
    assert {"translate_loss", "loss"} < record.result["eval"]["32"].keys()
    batches = killed.batches | record.batches
    read = [b["lengths"].sum() + b["source_lengths"].sum() for b in batches.values()]
    assert len(read) == 4 and record.result["tokens"] == sum(read)
    (phase,) = record.result["phases"]
    assert phase["padding_share"] == pytest.approx(1 - sum(read) / (4 * 8 * 64), abs=0.1)
    return folder


Start = Callable[..., tuple[int, str, str]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Start:
    """start(*flags of sample) -> exit code, stdout, stderr."""
    monkeypatch.setattr(host, "configure_jax", lambda *_: None)

    def run(*flags: str) -> tuple[int, str, str]:
        return in_process.code(
            sample, ["--json", "--max_new_tokens=6", *flags]
        ), *capsys.readouterr()

    return run


END = "<|endoftext|>"
EMPTY = dataclasses.replace(suites.SUITES["lambada"], read=lambda folder: [])
SOURCES = ("bada gedu", "dodo. a", "a")


def test_sample_reads_sources(run: pathlib.Path, start: Start) -> None:
    opened = pretrained.load(run)
    tokenizer, frame = opened.tokenizer, opened.tokenizer.frame()
    end = tokenizer.special_ids["eos"]
    read = [np.array([*frame.begin, *tokenizer.encode(s), *frame.end], np.int32) for s in SOURCES]
    made = stepper.prepare(opened.net, opened.params)
    sizes = {"max_new_tokens": 6, "max_len": 64, "end_token": end}

    def expected(prompts: Any, sources: Any = read) -> list[list[int]]:
        begun = [np.array([end, *prompt], np.int32) for prompt in prompts or [[]] * len(sources)]
        found = loop.generate(made, begun, Rules(), sources=sources, **sizes)
        return [text.tokens.tolist() for text in found]

    def found(*flags: str) -> list[list[int]]:
        code, out, errors = start(f"--run={run}", *(f"--source={s}" for s in SOURCES), *flags)
        assert code == 0, errors
        return [json.loads(line)["tokens"] for line in out.splitlines()]

    assert found() == expected(None) != expected(None, read[::-1])
    prompts = [f"--prompt={text}" for text in SOURCES[::-1]]
    assert found(*prompts) == expected(list(map(tokenizer.encode, SOURCES[::-1])))
    assert [row[0] for row in found("--num_beams=2", "--max_new_tokens=1")] == [
        row[0] for row in expected(None)
    ]
    drawn = found("--temperature=2", "--seed=1")
    assert len(set(map(tuple, drawn))) == len(SOURCES)  # keys depend on the source, too


def test_short_sources_are_read_together(
    run: pathlib.Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts keep their order and tokens, and a batch has little padding."""
    shapes, generate = [], loop.generate

    def count(made: Any, prompts: Any, *given: Any, sources: Any, **more: Any) -> Any:
        shapes.append(loop.fill(sources, 64)[0].shape)
        return generate(made, prompts, *given, sources=sources, **more)

    monkeypatch.setattr(loop, "generate", count)
    sources = [f"--source={'bada gedu dodo '[: 12 + n] * (1 + 4 * (n % 2))}" for n in range(4)]
    found, drawn = {}, ("--temperature=2", "--seed=1")
    for size in (1, 2):
        code, found[size], errors = start(f"--run={run}", f"--batch_size={size}", *sources, *drawn)
        assert code == 0, errors
    assert found[1] == found[2] and len(set(found[1].splitlines())) == 4
    lengths = sorted(width for _, width in shapes[:4])  # each source alone
    assert lengths[0] == lengths[1] < lengths[2] == lengths[3]
    assert sum(rows * width for rows, width in shapes[4:]) == sum(lengths)


@pytest.mark.parametrize("flags", [(), ("--special",)])
def test_special_tokens_in_texts_are_read_only_when_asked_for(
    run: pathlib.Path, start: Start, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    tokenizer, read = pretrained.load(run).tokenizer, []
    end = tokenizer.special_ids["eos"]

    def generate(made: Any, prompts: Any, *given: Any, sources: Any, **more: Any) -> list[Any]:
        read.append([row.tolist() for row in (*prompts, *sources)])
        return []

    monkeypatch.setattr(loop, "generate", generate)
    texts = [f"--source=bada {END} gedu", f"--prompt={END}bada"]
    code, _, errors = start(f"--run={run}", *texts, *flags)
    assert code == 0, errors
    prompt, source = read[0]
    assert (prompt[0], source[-1]) == (end, end)
    inner = prompt[1:], source[:-1]
    if flags:
        bada, gedu = (tokenizer.encode(text).tolist() for text in ("bada", " gedu"))
        assert inner == ([end, *bada], [*bada, end, *gedu])
    else:
        assert not any(end in ids for ids in inner)


@pytest.mark.parametrize("trained", [None, False, True])
def test_scores_of_inputs_that_training_had_not_are_marked(
    run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, trained: bool | None
) -> None:
    if trained is not None:
        reading = systems.Reading(source=("eos",), trained=trained)
        monkeypatch.setattr(systems.load("translator"), "READING", reading, raising=False)
    (tmp_path / "own.jsonl").write_text(json.dumps({"good": SOURCES[0], "bad": SOURCES[1]}))
    given = suites.SUITES["pairs"], run, tmp_path / "own.jsonl", tmp_path / "work"
    shown = evaluation.evaluate(*given)
    result = json.loads((tmp_path / "work/seed0/result.json").read_text())
    marked = "had no such inputs"
    assert (marked in shown) == any(marked in x for x in result["remarks"]) == (not trained)


def test_pairs_logged_in_training_are_marked(lab: Lab, tmp_path, caplog, capsys) -> None:
    (tmp_path / "own.jsonl").write_text(json.dumps({"good": SOURCES[0], "bad": SOURCES[1]}))
    pairs = {"eval__pairs": str(tmp_path / "own.jsonl"), "eval__pairs_every_words": 100}
    for system, marked in (("translator", True), ("gpt2", False)):
        config = lab.config(f"system={system},steps=4", long__example_rate=0.0, **pairs)
        lines = lab.run(tmp_path / system, config).lines()
        found = [line for line in lines if "eval/pairs_accuracy" in line]
        assert found and all(("eval/pairs_untrained" in line) == marked for line in found)
        shown = "".join(capsys.readouterr())
        assert "of the pairs" in shown and ("had no such inputs" in shown) == marked


def test_sample_refuses_what_does_not_fit(
    run: pathlib.Path, start: Start, pretrained_runs: Callable[[str], pathlib.Path]
) -> None:
    for message, flags in {
        "translator in .* reads a source: give --source": [f"--run={run}", "--prompt=a"],
        "gpt2 in .* reads no source": [f"--run={pretrained_runs('gpt2')}", "--source=a"],
        "2 prompts and 1 sources": [f"--run={run}", "--prompt=a", "--prompt=b", "--source=a"],
        "source '' has no words": [f"--run={run}", "--source=a", "--source="],
    }.items():
        code, out, errors = start(*flags)
        assert code == 2 and not out and "Traceback" not in errors
        assert re.search(message, errors), errors


@pytest.mark.parametrize("program", [
    lambda run, tmp: in_process.run(fill_mask, [f"--run={run}", "a [MASK] b"]),
    lambda run, tmp: in_process.run(word_order, [f"--run={run}"]),
    lambda run, tmp: evaluation.evaluate(EMPTY, run, tmp, tmp / "work"),
])  # fmt: skip
def test_programs_that_give_one_text_refuse_the_net(
    program: Callable[..., Any], run: pathlib.Path, tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit) as ended, cli.one_message("nothing was done"):
        program(run, tmp_path)
    message = capsys.readouterr().err
    assert ended.value.code == 2 and "translator, whose model reads a source beside a" in message
    assert "Traceback" not in message


def test_a_text_is_predicted_after_the_declared_source(
    run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As single sentences are, which are proved below; another source gives other scores."""
    documents = "".join(f" = Title = \n\n {text} \n\n" for text in SOURCES)
    for split in ("train", "valid"):
        (tmp_path / f"wiki.{split}.raw").write_text(documents)

    def measure(folder: str) -> np.ndarray:
        corpus = f"--corpus=wikitext:{tmp_path}"
        in_process.run(lm, [f"--run={run}", corpus, f"--workdir={tmp_path / folder}"])
        rows = (tmp_path / folder / "documents.tsv").read_text().splitlines()
        return np.array([float(row.split("\t")[4]) for row in rows[1:]])

    opened = pretrained.load(run)
    encoded = sentence_scores.encode(opened.tokenizer, SOURCES)
    asked = evaluation.Asked(None, pathlib.Path(), {}, batch_tokens=64)
    nats = sentence_scores.score(opened, encoded, "conditional", asked)
    np.testing.assert_allclose(measure("a"), encoded.add_up(nats), atol=1e-4)
    (note,) = json.loads((tmp_path / "a/result.json").read_text())["notes"]
    assert "pre-training had no such inputs" in note
    other = systems.Reading(source=("eos", "eos"))
    monkeypatch.setattr(systems, "reading", lambda _: other)
    assert np.abs(measure("b") - encoded.add_up(nats)).min() > 0.01
    monkeypatch.setattr(systems, "reading", lambda _: systems.Reading(source=()))
    with pytest.raises(SystemExit, match="2"):
        measure("c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_a_sentence_alone_is_scored_behind_an_empty_source(
    run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PyTorch, one sentence at a time; another source gives other scores."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    opened = pretrained.load(run)
    assert sentence_scores.rules(opened) == ["conditional"]
    end = opened.tokenizer.special_ids["eos"]

    def by_pytorch(source: list[int]) -> list[float]:
        totals = []
        for ids in (opened.tokenizer.encode(text).tolist() for text in SOURCES):
            row = small_encdec.batch([source], [len(source)], [[end, *ids]], [len(ids) + 1])
            states = small_encdec.torch_hidden(PreNorm, opened.params, row)[0]
            scores = states @ np.asarray(opened.params["decoder"]["embed"]["tokens"]["table"]).T
            totals.append(sum(special.log_softmax(s)[i] for s, i in zip(scores, ids, strict=False)))
        return totals

    encoded = sentence_scores.encode(opened.tokenizer, SOURCES)
    asked = evaluation.Asked(None, pathlib.Path(), {}, batch_tokens=64)
    nats = sentence_scores.score(opened, encoded, "conditional", asked)
    found, counts = encoded.add_up(-nats), encoded.add_up(~np.isnan(nats) + 0.0)
    np.testing.assert_allclose(found, by_pytorch([end]), atol=1e-4)
    assert counts.tolist() == [len(opened.tokenizer.encode(text)) for text in SOURCES]
    assert np.abs(found - by_pytorch([end + 1, end + 2])).min() > 0.01

    (tmp_path / "own.jsonl").write_text(json.dumps({"good": SOURCES[0], "bad": SOURCES[1]}))
    data, work = tmp_path / "own.jsonl", tmp_path / "work"
    assert "rule conditional" in evaluation.evaluate(suites.SUITES["pairs"], run, data, work)
    assert json.loads((work / "seed0/result.json").read_text())["recipe"] == "conditional"
    monkeypatch.setattr(type(opened.tokenizer), "frame", lambda self: formats.Frame((), (), ()))
    with pytest.raises(ValueError, match="puts no special token into the source of a single"):
        evaluation.evaluate(suites.SUITES["pairs"], run, data, tmp_path / "other")


def test_a_study_refuses_to_score_the_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "module_names", names.module_names)
    stage = a_study.stage(systems=("bert", "translator"))
    a_study.make(stages={"main": stage})
    with pytest.raises(ValueError, match="stages.main.systems: the model of 'translator' reads"):
        a_study.make(stages={"main": stage}, finetune__tasks=("rte",))
    a_study.make(stages={"main": stage | {"finetune": "none"}}, finetune__tasks=("rte",))
    module = systems.load("translator")
    adaptation = dataclasses.replace(module.ADAPTATION, source="both")
    monkeypatch.setattr(module, "ADAPTATION", adaptation)
    a_study.make(stages={"main": stage}, finetune__tasks=("rte",))
    more = {"finetune__tasks": ("rte",), "evaluation_data": "/d"}
    a_study.make(stages={"main": stage}, evaluations=("blimp",), **more)
    with pytest.raises(ValueError, match="the model of 'translator' reads a source"):
        a_study.make(stages={"main": stage}, evaluations=("blimp", "lambada"), **more)


def test_a_card_is_written_and_an_export_needs_a_map(
    run: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert "translate" in card.write(run)
    with pytest.raises(ValueError, match="translator"):
        exporting.run(run, tmp_path / "export")
