"""Label words that a model generates, and class heads of a model with a source.

Planted tasks are learned; losses, states and answers equal those of a loop that calls the model on
each example alone, without padding and cache.
"""

import dataclasses
import functools
import json
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import glue_folder
import guests
import in_process
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from test_finetune import config

from scalelab import finetune, predict, systems
from scalelab.eval import glue, glue_table, program
from scalelab.finetuning import kinds, results, step, warm_start
from scalelab.finetuning.progress import Progress
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.text_to_text import TextToText
from scalelab.nn.heads import token_logits
from scalelab.records import predictions, run_folder
from scalelab.tasks import batches
from scalelab.tasks.facts import Task, TaskSplit
from scalelab.tasks.files import Columns
from scalelab.tasks.records import Records
from scalelab.tasks.task import Splits, as_text, load_task

Prepare = Callable[..., TaskRun]
FILLERS = "if me up in".split()
LABELS = ("go", "tree", "dad")  # several pieces, most of which no other word has
STANDS = Task(
    name="stands", title="Stands", relation="single", metrics=("accuracy",), labels=LABELS,
    columns=Columns(("text",)), train=TaskSplit("train", ("train.tsv",)),
    dev_splits=(TaskSplit("dev", ("dev.tsv",)),),
)  # fmt: skip
SLOWLY = {"epochs": 150.0, "optim.learning_rate": 1e-2}
CASES = [("gpt2", "text"), ("translator", "text"), ("translator", "both"), ("translator", "source")]


@pytest.fixture(autouse=True, scope="module")
def translator() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        guests.add(patch, "translator")
        warm_start._open.cache_clear()  # an earlier one, of another module of tests
        yield


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch has the same shape: compiling takes longest."""
    monkeypatch.setattr(batches, "BUCKETS", (60,))


def planted(n: int, seed: int) -> Records:
    """Texts in which their label stands, somewhere."""
    rng = np.random.default_rng(seed)
    labels, texts = rng.integers(len(LABELS), size=n).astype(np.int32), []
    for label in labels:
        spelt = rng.choice(FILLERS, rng.integers(1, 4)).tolist()
        spelt.insert(rng.integers(len(spelt) + 1), LABELS[label])
        texts.append(" ".join(spelt))
    return Records((texts,), labels, "invented", str(seed))


@pytest.fixture
def prepare(pretrained_runs, cache_dir, tmp_path, monkeypatch) -> Prepare:
    """prepare(system, form, **fields of the config) -> TaskRun of STANDS or of `task`."""

    def make(system: str, form: str | None, *, task: Task = STANDS, num_rows: int = 96,
             records: Any = None, **fields: Any) -> TaskRun:  # fmt: skip
        module = systems.load(system)
        if form == "text":
            task = as_text(task)
        elif module.HAS_SOURCE:
            adaptation = dataclasses.replace(module.ADAPTATION, source=form)
            monkeypatch.setattr(module, "ADAPTATION", adaptation)
        small = {
            "epochs": 40.0, "batch_size": 16, "dropout_rate": 0.0, "optim.learning_rate": 3e-2,
            "head.kind": kinds.load(task.kind).HEAD, "head.dropout_rate": 0.0, "max_len": 60,
            "eval_every_epochs": 200.0, "machine.tracker": None,
        }  # fmt: skip
        start = warm_start.open_start(str(pretrained_runs(system)))
        train = records or planted(num_rows, 0)
        splits = Splits(train, {"dev": records or planted(41, 1)}, {})
        return TaskRun(task, splits, start, config(cache_dir, **(small | fields)), tmp_path / "run")

    return make


@functools.partial(jax.jit, static_argnums=0)
def run_net(net: Any, params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
    """The last state [B, D] of each row, and the scores [B, V] of the token behind it."""
    variables = {"params": params["body"]}
    hidden, _ = net.apply(variables, batch, train=False)
    last = hidden[jnp.arange(len(hidden)), batch["lengths"] - 1]
    return last, net.apply(variables, last, method=token_logits)


def call(run: TaskRun, params: Any, **rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """`run_net` on rows of tokens, and of sources: never behind a cache."""
    batch = {"examples": np.arange(len(rows["tokens"]), dtype=np.int32)}
    for name, texts in rows.items():
        batch[name] = np.zeros((len(texts), 64), np.int32)
        for row, ids in zip(batch[name], texts, strict=True):
            row[: len(ids)] = ids
        name = "lengths" if name == "tokens" else f"{name}_lengths"
        batch[name] = np.array([*map(len, texts)], np.int32)
    return jax.device_get(run_net(run.learner.net.body, params, batch))


def scores(
    run: TaskRun, params: Any, prompts: list[list[int]], said: list[list[int]]
) -> np.ndarray:
    """Scores [B, V] of the tokens behind the first tokens of targets."""
    if run.has_source:
        eos = run.tokenizer.special_ids["eos"]
        return call(run, params, source=prompts, tokens=[[eos, *ids] for ids in said])[1]
    return call(run, params, tokens=[[*a, *b] for a, b in zip(prompts, said, strict=True)])[1]


def prompts(run: TaskRun, records: Records, begin: str = "stands text:") -> list[list[int]]:
    """Tokens of the prompts, made of their parts."""
    read = lambda text: run.tokenizer.encode(text).tolist()  # noqa: E731
    tail = [run.tokenizer.special_ids["eos"]] if run.has_source else read(" label:")
    return [[*read(begin), *read(f" {text}"), *tail] for text in records.texts[0]]


def targets(run: TaskRun) -> list[list[int]]:
    blank = "" if run.has_source else " "
    spelt = [run.tokenizer.encode(f"{blank}{name}").tolist() for name in run.task.labels]
    return [[*tokens, run.tokenizer.special_ids["eos"]] for tokens in spelt]


def draw(run: TaskRun, seed: int = 0, own: Any = None) -> Any:
    """Large parameters; the model writes `own` tokens, or those of labels, more than others."""
    rng = np.random.default_rng(seed)
    own = np.unique(np.concatenate(targets(run))) if own is None else own

    def drawn(path: tuple, leaf: jax.Array) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        spread = 0.1 if "norm" in name or "bias" in name else 4 if "positions" in name else 0.7
        made = ("scale" in name) + spread * rng.normal(size=leaf.shape)
        if "tokens" in name:
            made *= 0.4 / np.linalg.norm(made, axis=-1, keepdims=True)
            made[own] *= 5
        return made.astype(np.float32)

    return jax.tree_util.tree_map_with_path(drawn, run.first_params(0))


def decode_by_loop(
    run: TaskRun, params: Any, prompts: list[list[int]]
) -> list[tuple[int, bool, list[int]]]:
    """The classes that greedy decoding reaches over labels; whether it does so over all tokens; and
    what it writes over all tokens."""
    allowed, eos = targets(run), run.tokenizer.special_ids["eos"]
    made, free = [[] for _ in prompts], [[] for _ in prompts]
    for _ in range(max(map(len, allowed))):
        for texts, is_free in ((made, False), (free, True)):
            for text, found in zip(texts, scores(run, params, prompts, texts), strict=True):
                can = sorted({t[len(text)] for t in allowed if t[:-1][: len(text)] == text})
                if text[-1:] != [eos]:
                    text.append(int(found.argmax()) if is_free else can[int(found[can].argmax())])
    return [(allowed.index(a), b in allowed, b) for a, b in zip(made, free, strict=True)]


# --- Inputs, losses, answers --------------------------------------------------------------------


@pytest.mark.parametrize("system", ["gpt2", "translator"])
def test_the_prompt_names_task_and_columns(prepare: Prepare, system: str) -> None:
    run = prepare(system, "text", num_rows=20)
    expected, longest = prompts(run, run.splits.train), max(map(len, targets(run)))
    batch = run.train.gather(np.arange(20), 60)
    room = 0 if run.has_source else longest - 1
    rows = zip(batch["tokens"].tolist(), batch["lengths"], strict=True)
    assert [row[: n - room] for row, n in rows] == expected
    own = [targets(run)[k] for k in run.splits.train.labels]
    assert [[t for t in row if t >= 0] for row in batch["labels"].tolist()] == own
    # START and the label's tokens behind a source; the label's tokens behind the prompt.
    beside = [len(t) - (not run.has_source) for t in own]
    assert run.train.num_tokens.tolist() == np.add([*map(len, expected)], beside).tolist()
    assert run.train.first(3).num_tokens.tolist() == run.train.num_tokens[:3].tolist()


def test_the_longer_text_of_a_pair_is_cut(prepare: Prepare) -> None:
    pair = Records((["go " * 50], ["me"]), np.array([0], np.int32), "", "")
    run = prepare("gpt2", "text", task=load_task("mrpc"), records=pair, batch_size=1, max_len=60)
    assert run.train.truncated.all() and run.train.lengths.tolist() == [60]
    text = run.tokenizer.decode(run.train.gather(np.array([0]), 60)["tokens"][0])
    assert text.startswith("mrpc sentence1: go go") and " sentence2: me label:" in text


@pytest.mark.parametrize("system", ["gpt2", "translator"])
def test_the_loss_is_the_cross_entropy_of_the_targets_tokens(prepare: Prepare, system: str) -> None:
    run = prepare(system, "text", num_rows=16)
    params, total, count = draw(run), 0.0, 0
    read, own = prompts(run, run.splits.train)[:3], run.splits.train.labels[:3]
    for place in range(max(map(len, targets(run)))):
        said = [targets(run)[k] for k in own]
        found = scores(run, params, read, [ids[:place] for ids in said])
        for ids, row in zip(said, special.log_softmax(found, axis=1), strict=True):
            if place < len(ids):
                total, count = total - row[ids[place]], count + 1
    batch = run.train.gather(np.array([0, 1, 2, -1]), 60)  # the last counts nothing
    found = run.learner.loss(run.learner.scores(params, batch), batch)
    np.testing.assert_allclose(found, [total, count], rtol=1e-4)


@pytest.mark.parametrize("system", ["gpt2", "translator"])
def test_answers_are_those_of_greedy_decoding(prepare: Prepare, system: str) -> None:
    """Some are invalid: greedy decoding over all tokens gives no label."""
    labels = ("a", "b", "c", "ab", "ba")  # short: random models say some of them
    run = prepare(system, "text", num_rows=16, task=dataclasses.replace(STANDS, labels=labels))
    dev = run.splits.dev["dev"]
    for seed in range(12):
        params = draw(run, seed)
        made = results.dev_outputs(run, params)
        expected = decode_by_loop(run, params, prompts(run, dev))
        answers, valid, written = map(list, zip(*expected, strict=True))
        answers, valid = np.array(answers), np.array(valid)
        np.testing.assert_array_equal(made["dev"][:, :2], np.stack([answers, valid], 1))
        assert [[int(i) for i in row if i >= 0] for row in made["dev"][:, 2:]] == written
        # Random encoder-decoders say no label; a trained one says nothing else, see below.
        if len(set(answers)) > 1 and (system == "translator" or valid.any()) and not valid.all():
            break
    else:
        raise AssertionError("every model says one thing")

    run.folder(0).mkdir(parents=True)
    run_folder.write_description(run.folder(0), run.describe(0))
    results.write(run, 0, Progress(), made, params)
    invalid = int(41 - valid.sum())
    left = json.loads((run.folder(0) / "result.json").read_text())
    assert left["invalid"] == {"dev": invalid}
    assert left["eval"]["dev"]["accuracy"] == np.mean(answers == dev.labels)
    assert f"no label, replaced by the best of the labels: {invalid} of 41 (dev: " in (
        glue_table.write(run.workdir, only="stands")
    )
    strict = np.mean(valid & (answers == dev.labels))
    assert left["eval"]["dev"]["accuracy"] > strict  # a replaced answer may be right
    remarks = " ".join(left["remarks"])
    assert f"accuracy with invalid answers as wrong: {strict:.4f} (dev)" in remarks
    eos = run.tokenizer.special_ids["eos"]
    texts = [run.tokenizer.decode([i for i in ids if i != eos]).strip() for ids in written]
    ((often, count),) = Counter(t for t, v in zip(texts, valid, strict=True) if not v).most_common(
        1
    )
    assert f"{invalid} of 41 (dev: {often!r} {count}" in remarks
    known = predictions.read(run.folder(0) / "predictions.tsv")
    assert known.predicted.tolist() == answers.tolist()


@pytest.mark.parametrize("form", ["both", "source"])
def test_a_class_head_reads_the_decoders_last_state(prepare: Prepare, form: str) -> None:
    run = prepare("translator", form, num_rows=16)
    params, dev = draw(run), run.dev["dev"]
    found, batch = run.predict_with(params, dev), dev.gather(np.arange(41), 60)
    assert (np.ptp(found, axis=0) > 1e-3).all()
    rows = [r[:n].tolist() for r, n in zip(batch["tokens"], batch["lengths"], strict=True)]
    start = run.tokenizer.special_ids["eos"]
    texts = [[start, *row][: len(row)] if form == "both" else [start] for row in rows]
    vectors, _ = call(run, params, source=rows, tokens=texts)
    dense, out = (params["head"][name] for name in ("dense", "out"))
    layer = np.tanh(vectors @ dense["kernel"] + dense["bias"])
    np.testing.assert_allclose(found, layer @ out["kernel"] + out["bias"], atol=1e-4)
    read = 2 * batch["lengths"] if form == "both" else batch["lengths"] + 1
    assert dev.num_tokens.tolist() == read.tolist()


# --- Learning -----------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize(("system", "form"), [case for case in CASES if case[1] != "source"])
def test_a_planted_task_is_learnt(prepare: Prepare, system: str, form: str) -> None:
    # With a source it learns more slowly. The best constant answer has 0.39.
    run = prepare(system, form, **(SLOWLY if system == "translator" else {}))
    finetune.train([run], 0, run.workdir)
    result = run.result(0)
    assert result["eval"]["dev"]["accuracy"] > 0.94
    assert result["invalid"] == ({"dev": 0} if form == "text" else {})
    assert result["tokens"] == run.config.epochs * run.train.num_tokens.sum()
    assert finetune.results.evaluate_again(run, 0) == result["eval"]


@pytest.mark.ci
def test_without_its_source_nothing_is_learnt(prepare: Prepare, monkeypatch) -> None:
    real = TextToText._prompt
    dropped = lambda net, batch: real(net, batch | {"tokens": 0 * batch["tokens"]})  # noqa: E731
    monkeypatch.setattr(TextToText, "_prompt", dropped)
    step.compiled.cache_clear()
    run = prepare("translator", "text", **SLOWLY)
    finetune.train([run], 0, run.workdir)
    step.compiled.cache_clear()
    assert run.result(0)["eval"]["dev"]["accuracy"] < 0.6


@pytest.mark.ci
def test_the_program_trains_predicts_and_submits(
    pretrained_runs, cache_dir, tmp_path: pathlib.Path, capsys
) -> None:
    data, work = glue_folder.write(tmp_path / "glue"), tmp_path / "work"
    flags = [f"--init={pretrained_runs('gpt2')}", f"--data={data}", "--as=text", "--recipe=gpt"]
    fields = {"batch_size": 3, "epochs": 1.0, "max_len": 60, "machine.cache_dir": cache_dir,
              "machine.compile_cache_dir": None, "machine.tracker": None}  # fmt: skip
    flags += [f"--config.{name}={value}" for name, value in fields.items()]
    code = in_process.code(program, ["wnli", f"--workdir={work}", "--submit", *flags])
    out, errors = capsys.readouterr()
    assert code == 0, errors
    assert "as text; answers that were no label" in out
    assert (work / "submission.zip").exists()
    result = json.loads((work / "seed0/result.json").read_text())
    assert result["settings"]["head.kind"] == "words" and result["settings"]["lm_weight"] == 0
    lines = [x for part, _ in predict.predict(work, data / "WNLI/dev.tsv") for x in part]
    known = predictions.read(work / "seed0/predictions.tsv")
    assert [x.split("\t")[3] for x in lines[1:]] == [known.labels[i] for i in known.predicted]


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(("system", "form", "fields", "message"), [
    ("bert", "text", {}, "this bert does not predict the next token"),
    ("translator", None, {}, "translator does not declare where the text of a task goes"),
    ("translator", "both", {"feature_layers": 1}, "feature_layers = 1 does not go with a model"),
    ("translator", "both", {"lm_weight": 0.5}, "config.lm_weight=0"),
    ("gpt2", "text", {"lm_weight": 0.5}, "lm_weight = 0.5 does not go with --as=text"),
    ("gpt2", "text", {"head.lstm_width": 4}, "head.lstm_width = 4 does not go with --as=text"),
    ("gpt2", "text", {"head.kind": "double"}, "head.kind = 'double': expected 'words'"),
    ("gpt2", None, {"head.kind": "words"}, "head.kind = 'words': expected 'words' with --as=text"),
    ("gpt2", "text", {"max_len": 10}, "leaves no room for text"),
    ("translator", "source", {"task": load_task("pos")}, "PoS.* scores every token of its text"),
    ("gpt", "text", {"task": dataclasses.replace(STANDS, labels=("Go", "go", "a", "b"))},
     "label words 'Go' and 'go' alike"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(
    prepare: Prepare, system: str, form: str | None, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"(?i){message}"):
        prepare(system, form, **fields)


def test_a_task_without_label_words_is_refused(capsys) -> None:
    assert in_process.code(program, ["ner", "--as=text", "--init=RUN", "--workdir=DIR"]) == 2
    message = capsys.readouterr().err
    assert "this task has none (it predicts tags)" in message and "Traceback" not in message


@pytest.mark.parametrize(("start", "flags", "message"), [
    (program, ["rte", "--mnli=DIR"], "--mnli gives the weights of a model with a head"),
    (glue, ["--mnli_first", "--tasks=mnli,rte"], "--mnli_first gives a model with a head"),
])  # fmt: skip
def test_weights_of_another_head_are_refused(start, flags, message, capsys) -> None:
    assert in_process.code(start, [*flags, "--as=text", "--init=RUN", "--workdir=DIR"]) == 2
    assert message in capsys.readouterr().err
