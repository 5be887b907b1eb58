"""Texts that a model writes as answers: greedy decoding by hand, and a planted translation."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
from test_words import call, draw, one_bucket, prepare, prompts, translator  # noqa: F401

from scalelab import finetune, predict
from scalelab.config.fields import science_diff
from scalelab.config.finetuning import settings
from scalelab.decode import beam, loop, stepper
from scalelab.decode.choose import Rules
from scalelab.eval import ensemble
from scalelab.finetuning import prompts as prompts_lib
from scalelab.finetuning import reopen, results
from scalelab.records import predictions
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records

WORDS = ("go", "me", "in", "up")
CIPHER = dict(zip(WORDS, ("tree", "dad", "bed", "it"), strict=True))
TASK = Task(
    name="cipher", title="Cipher", relation="single", metrics=("exact_match",), kind="texts",
    columns=Columns(("text",)), train=TaskSplit("train", ("train.tsv",)), prompt="say:",
    read=lambda *_: planted(1, 0), dev_splits=(TaskSplit("dev", ("dev.tsv",)),), answer_len=12,
)  # fmt: skip
SYSTEMS = ["gpt2", "translator", pytest.param("prefix_lm", marks=pytest.mark.ci)]


def planted(n: int, seed: int) -> Records:
    """Texts of one or two words, whose answer is the last word in another language."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 3))) for _ in range(n)]
    labels = [json.dumps([[CIPHER[text.split()[-1]], -1]]) for text in texts]
    return Records((texts,), np.array(labels), "invented", str(seed))


@pytest.mark.parametrize("system", ["gpt2", "translator"])
def test_answers_are_those_of_greedy_decoding(prepare, system: str) -> None:  # noqa: F811
    run = prepare(system, None, task=TASK, records=planted(16, 0), num_rows=16)
    words, dev = [*WORDS, *CIPHER.values()], run.splits.dev["dev"]
    often = {token for word in words for token in run.tokenizer.encode(f" {word}").tolist()}
    often = sorted(often)[:3]  # few, so that some texts end
    end = prompts_lib.end_token(run.task, run.reading)
    params = draw(run, own=[*often, end])
    made = run.predict_with(params, run.dev["dev"])
    expected = []
    for prompt in prompts(run, dev, "say:"):
        written: list[int] = []
        while len(written) < TASK.answer_len and end not in written:
            _, found = next_token(run, params, prompt, written)
            written.append(int(found[0].argmax()))
        expected.append(written + [-1] * (TASK.answer_len - len(written)))
    np.testing.assert_array_equal(made, expected)
    assert len({tuple(row) for row in expected}) > 1
    ended = next(place for place, row in enumerate(expected) if -1 in row)
    texts = results.decode(run, "dev", made).answers
    kept = [token for token in expected[ended] if token not in (-1, end)]
    assert texts[ended] == run.tokenizer.decode(kept).strip()


@pytest.mark.parametrize("system", SYSTEMS)
def test_answers_are_those_of_the_beam_search(prepare, system: str) -> None:  # noqa: F811
    texts = {}
    for own in ({"num_beams": 3}, {"num_beams": 3, "length_penalty": -2.0}, {}):
        run = prepare(system, None, task=TASK, records=planted(16, 0), num_rows=16, **own)
        end = prompts_lib.end_token(run.task, run.reading)
        params = draw(run, own=[*run.tokenizer.encode(WORDS[0]).tolist(), end])
        made = run.predict_with(params, run.dev["dev"])
        texts[str(own)] = made[made != end].tolist()
        if not own:
            continue
        body = run.learner.net.body
        read = [np.array(ids, np.int32) for ids in prompts(run, run.splits.dev["dev"], "say:")]
        given = {"sources": read} if run.has_source else {}
        begun = [np.array([run.reading.start])] * len(read) if run.has_source else read
        sizes = {"max_new_tokens": TASK.answer_len, "max_len": 60 + TASK.answer_len}
        found = beam.search(
            stepper.prepare(body, params["body"]), begun, end_token=end, **given, **sizes, **own
        )
        for row, (best, *_) in zip(made, found, strict=True):
            kept = row[(row >= 0) & (row != end)]
            np.testing.assert_array_equal(kept, best.tokens)
            assert (end in row) == (best.ended_by == "end")
    assert len(set(map(str, texts.values()))) == 3  # else greedy, or one penalty, would do


def test_bleus_signature_counts_the_answers_of_the_data(prepare) -> None:  # noqa: F811
    task, given = dataclasses.replace(TASK, metrics=("bleu",)), planted(16, 0)
    more = np.array([json.dumps([["a", -1], ["b", -1]]), *given.labels[1:]])
    for labels, number in ((given.labels, "1"), (more, "var")):
        records = dataclasses.replace(given, labels=labels)
        run = prepare("gpt2", None, task=task, records=records, num_rows=16)
        assert f"bleu by sacrebleu nrefs:{number}|" in str(results.remarks(run))


def test_scores_of_other_beams_are_not_compared(prepare) -> None:  # noqa: F811
    """Another search is another config, which the results and the comparison name."""
    given = {"task": TASK, "records": planted(16, 0), "num_rows": 16}
    greedy = prepare("gpt2", None, **given)
    beams = prepare("gpt2", None, **given, num_beams=4, length_penalty=0.6)
    own = {"num_beams": 4, "length_penalty": 0.6}
    assert own.items() <= settings(beams.config).items()
    assert f"num_beams {own['num_beams']}, length_penalty 0.6" in str(results.remarks(beams))
    assert "beams" not in str(results.remarks(greedy))
    lines = science_diff(beams.describe(0), greedy.describe(0))
    assert sorted(line.split(":")[0] for line in lines) == sorted(own)
    older = {k: v for k, v in greedy.describe(0).items() if k not in own}
    assert science_diff(older, greedy.describe(0)) == []  # runs from before were greedy


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"num_beams": 2}, "Stands has labels"), ({"length_penalty": 1.0}, "set config.num_beams")],
)
def test_beams_that_would_have_no_effect_are_refused(prepare, fields, message: str) -> None:  # noqa: F811
    with pytest.raises(ValueError, match=message):
        prepare("gpt2", "text", **fields)


def next_token(run, params, prompt: list[int], written: list[int]):
    """The scores of the token behind a prompt and the tokens already written, without a cache."""
    if run.reading.start is None:
        return call(run, params, tokens=[prompt + written])
    return call(run, params, source=[prompt], tokens=[[run.reading.start, *written]])


def test_the_rows_of_a_text_hold_its_answer(prepare) -> None:  # noqa: F811
    run = prepare("gpt2", None, task=TASK, records=planted(16, 0), num_rows=16)
    batch = run.train.gather(np.arange(3), 60)
    answer = json.loads(run.splits.train.labels[0])[0][0]
    row = batch["labels"][0]
    assert run.tokenizer.decode(row[row >= 0][:-1]).strip() == answer
    room = (TASK.answer_len - 1) * [prompts_lib.end_token(run.task, run.reading)]
    tokens = batch["tokens"][0][: batch["lengths"][0]]
    assert tokens[-len(room) :].tolist() == room  # overwritten by the answer
    assert run.tokenizer.decode(tokens).startswith("say: ")
    short = dataclasses.replace(TASK, answer_len=2)
    cut = prepare("gpt2", None, task=short, records=planted(16, 0), num_rows=16)
    assert cut.train.labels.shape == (16, 2)
    spelt = [json.loads(label)[0][0] for label in cut.splits.train.labels]
    sizes = np.array([len(run.tokenizer.encode(f" {word}")) + 1 for word in spelt])
    assert 0 < (num_cut := (sizes > 2).sum()) and (sizes == 2).sum() < 16
    remark = f"answers cut to 2 tokens: {num_cut} of 16 (train), {num_cut} of 16 (dev)"
    assert remark in str(results.remarks(cut))
    assert "answers cut" not in str(results.remarks(run))
    full = dataclasses.replace(TASK, answer_len=int(sizes.max()))  # the longest has its end
    fits = prepare("gpt2", None, task=full, records=planted(16, 0), num_rows=16)
    assert "answers cut" not in str(results.remarks(fits))


def test_answers_have_at_most_the_models_positions(prepare) -> None:  # noqa: F811
    """Behind a source they have positions of their own, which the task does not know."""
    task, records = dataclasses.replace(TASK, answer_len=500), planted(16, 0)
    run = prepare("translator", None, task=task, records=records, num_rows=16)
    positions = run.start.opened.config.model.max_len
    assert run.train.labels.shape == (16, positions) and run.learner.net.longest == positions < 500


def test_answers_in_a_language_that_the_tokenizer_does_not_know_are_refused(prepare) -> None:  # noqa: F811
    records = planted(16, 0)
    greek = np.array([json.dumps([["\u03b6\u03b7 \u03b8", -1]])] * 16)
    labels = np.append(greek[:14], records.labels[14:])
    with pytest.raises(ValueError, match=r"Cipher: \d+ of \d+ tokens of the answers are unknown"):
        prepare("t5", None, task=TASK, num_rows=16,
                records=dataclasses.replace(records, labels=labels))  # fmt: skip
    texts = ["\u03b6 go", *records.texts[0][1:]]
    read = dataclasses.replace(records, texts=(texts,))
    run = prepare("t5", None, task=TASK, records=read, num_rows=16)
    # A word in train and in dev; and the colon of each prompt.
    noted = str(results.remarks(run))
    assert f"Cipher: {2 * 16 + 2} of 198 tokens, prompts included, are unknown" in noted


@pytest.mark.ci
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_planted_translation_is_learnt(prepare, tmp_path: pathlib.Path, system: str) -> None:  # noqa: F811
    fields = {"epochs": 60.0, "optim.learning_rate": 1e-2}
    run = prepare(system, None, task=TASK, records=planted(96, 0), **fields)
    finetune.train([run], 0, run.workdir)
    result = run.result(0)
    assert result["eval"]["dev"]["exact_match"] > 0.9
    assert result["invalid"] == {"dev": 0} and result["degenerate"] is None
    assert finetune.results.evaluate_again(run, 0) == result["eval"]


@pytest.mark.parametrize("system", ["gpt2", "translator"])
def test_models_that_write_together(prepare, tmp_path, monkeypatch, system: str) -> None:  # noqa: F811
    monkeypatch.setattr(reopen, "load_task", lambda _: TASK)
    fields = {"epochs": 20.0, "optim.learning_rate": 1e-2}
    run = prepare(system, None, task=TASK, records=planted(48, 0), num_rows=48, **fields)
    for seed in range(2):
        finetune.train([run], seed, run.workdir)
    one, other = (run.folder(seed) for seed in range(2))
    given = predictions.read(one / "predictions.tsv")
    alone = [predictions.read(f / "predictions.tsv").predicted.tolist() for f in (one, other)]
    assert alone[0] != alone[1]
    for folder, texts in zip((one, other), alone, strict=True):
        assert ensemble.write_texts([folder] * 2, given).predicted.tolist() == texts
    net, members = run.learner.net.body, [reopen.load(folder).params for folder in (one, other)]
    made = stepper.Ensemble([stepper.prepare(net, params["body"]) for params in members])
    read = [np.array(ids, np.int32) for ids in prompts(run, run.splits.dev["dev"], "say:")]
    begun = [np.array([run.reading.start])] * len(read) if run.has_source else read
    sizes = {"max_new_tokens": TASK.answer_len, "max_len": 60 + TASK.answer_len}
    found = loop.generate(
        made, begun, Rules(), **sizes, end_token=prompts_lib.end_token(run.task, run.reading),
        sources=read if run.has_source else None,
    )  # fmt: skip
    expected = [prompts_lib.text_of(text.tokens, run.task, run.reading) for text in found]
    together = ensemble.write_texts([one, other], given).predicted.tolist()
    assert together == expected and together != alone[0]
    table = ensemble.score([one, other])
    pairs = zip(together, given.texts[0], strict=True)
    right = np.mean([text == CIPHER[read.split()[-1]] for text, read in pairs])
    assert table["ensemble"].tolist() == [pytest.approx(right)]
    file = tmp_path / "new.jsonl"
    file.write_text('{"text": "go"}\n{"text": " "}\n')
    with pytest.raises(ValueError, match="text 2 is empty"):
        list(predict.predict(one, file))
    path = other / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_beams": 2}))
    with pytest.raises(ValueError, match="num_beams or length_penalty differ"):
        ensemble.score([one, other])
    shutil.rmtree(other / "checkpoints")
    with pytest.raises(ValueError, match="seed1"):
        ensemble.score([one, other])
