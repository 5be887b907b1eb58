"""The likelihood of documents: against loops written out, closed forms, and transformers."""

import dataclasses
import functools
import json
import math
import pathlib
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn

from scalelab import build, environment, pretrained, state, token_scores
from scalelab.data import prepare
from scalelab.data.corpora import open_corpus
from scalelab.data.tokenizers import TokenizerSpec
from scalelab.eval import likelihood, lm, lm_report, texts, windows
from scalelab.eval.likelihood import Reading

Runs = Callable[[str], pathlib.Path]
CONTEXT, STRIDE = 12, 5
LENGTHS = (1, 2, 7, 12, 13, 31, 0, 22)  # tokens of documents
STARTS = np.cumsum([0, *LENGTHS])


@functools.cache
def opened_run(path: pathlib.Path) -> Any:
    return pretrained.load(path)


def tokens_of(opened: Any) -> np.ndarray:
    lowest = len(opened.system.SPECIAL_TOKENS)
    return np.random.default_rng(0).integers(lowest, 300, STARTS[-1]).astype(np.int32)


def reading_of(opened: Any, context: int = CONTEXT, stride: int = STRIDE) -> Reading:
    frame, ids = opened.tokenizer.frame(), opened.tokenizer.special_ids
    if opened.system.CAUSAL:
        return Reading((), (), None, context, stride)
    return Reading(frame.begin, frame.end, ids["mask"], context, stride)


def nats_of(opened: Any, tokens: np.ndarray, starts: np.ndarray, reading: Reading) -> np.ndarray:
    """What the program computes."""
    rows = likelihood.rows_of(starts, reading)
    batches = likelihood.plan(rows, reading, batch_size=2)
    net = build.make_net(opened.config, opened.system)
    done: list[int] = []
    tick = done.append
    found = likelihood.token_nats(net, opened.params, tokens, rows, batches, reading, tick)
    assert sum(done) == sum(len(batch.rows) * batch.length for batch in batches)
    return found


def logits_of(opened: Any) -> Callable[[list[int]], np.ndarray]:
    """Scores [n, V] of one row by the net's own head."""
    net = build.make_net(opened.config, opened.system)

    @jax.jit
    def run(batch: Any) -> jax.Array:
        apply = nn.apply(lambda m: m.token_logits(m(batch, train=False)[0]), net)
        return apply({"params": opened.params})

    def logits(row: list[int]) -> np.ndarray:
        batch = token_scores.pad([np.asarray(row)], CONTEXT + 2, 1)
        return np.asarray(run(batch))[0, : len(row)]

    return logits


def minus_log_softmax(scores: np.ndarray, target: int) -> float:
    scores = scores.astype(np.float64)
    top = scores.max()
    return float(top + np.log(np.exp(scores - top).sum()) - scores[target])


@functools.cache
def one_by_one(path: pathlib.Path) -> np.ndarray:
    """The same as the program, a token at a time, no cache, no batch, windows found by search."""
    opened = opened_run(path)
    tokens, logits, reading = tokens_of(opened), logits_of(opened), reading_of(opened)
    causal = reading.mask_id is None
    expected = []
    for begin, end in zip(STARTS, STARTS[1:], strict=False):
        document = tokens[begin:end].tolist()
        for t, target in enumerate(document):
            start = 0
            ahead = 0 if causal else (CONTEXT - STRIDE) // 2
            while t >= start + CONTEXT - ahead and start + CONTEXT < len(document):
                start += STRIDE
            seen = document[start : start + CONTEXT]
            if len(document) > CONTEXT and t >= CONTEXT:
                assert t - start >= (CONTEXT - STRIDE - ahead)
            if causal:
                scores = logits(seen[: t - start])[-1] if t > start else None
            else:
                seen[t - start] = reading.mask_id
                row = [*reading.begin, *seen, *reading.end]
                scores = logits(row)[len(reading.begin) + t - start]
            expected.append(math.nan if scores is None else minus_log_softmax(scores, target))
    return np.array(expected)


def check(path: pathlib.Path) -> None:
    opened, expected = opened_run(path), one_by_one(path)
    found = nats_of(opened, tokens_of(opened), STARTS, reading_of(opened))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    unknown = np.isnan(found).nonzero()[0].tolist()
    firsts = [s for s, n in zip(STARTS, LENGTHS, strict=False) if n]
    assert unknown == (firsts if opened.system.CAUSAL else [])


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_each_token_is_scored_once_as_a_loop_does_it(pretrained_runs: Runs, system: str) -> None:
    check(pretrained_runs(system))


def changed(made: windows.Windows, by: int) -> windows.Windows:
    """Windows whose first scored token, from the second window on, is off by `by`."""
    firsts = made.firsts.copy()
    firsts[1:] += by
    return windows.Windows(made.starts, made.stops, firsts, made.lasts)


@pytest.mark.parametrize("wrong", ["twice", "left out", "place", "border"])
@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_what_is_wrong_is_noticed(pretrained_runs: Runs, system: str, wrong: str, monkeypatch):
    one_by_one(pretrained_runs(system))
    slide, fill = windows.slide, likelihood.fill

    def misplaced(*given: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        batch, places, targets = fill(*given)
        return batch, np.maximum(places - 1, 0), targets

    def no_overlap(num_tokens: int, context: int, stride: int, ahead: int) -> windows.Windows:
        del stride, ahead
        return slide(num_tokens, context, context, 0)

    if wrong == "place":
        monkeypatch.setattr(likelihood, "fill", misplaced)
    elif wrong == "border":
        monkeypatch.setattr(windows, "slide", no_overlap)
    else:
        by = {"twice": -1, "left out": 1}[wrong]
        monkeypatch.setattr(windows, "slide", lambda *given: changed(slide(*given), by))
    with pytest.raises(AssertionError):
        check(pretrained_runs(system))


@pytest.mark.parametrize("system", ["gpt", "gpt2"])
def test_documents_that_fit_have_the_loss_of_training(pretrained_runs: Runs, system: str) -> None:
    opened = opened_run(pretrained_runs(system))
    rng = np.random.default_rng(1)
    rows = [rng.integers(9, 300, n).astype(np.int32) for n in (3, 9, 16, 30)]
    net = build.make_net(opened.config, opened.system)
    objectives = build.make_objectives(opened.config, opened.tokenizer.special_ids)

    @jax.jit
    def terms(batch: Any) -> Any:
        return net.apply(
            {"params": opened.params}, batch, objectives,
            train=False, accuracy=False, method=state.apply_objectives,
        )  # fmt: skip

    expected, weight = terms(token_scores.pad(rows, 32, 4))["clm"]["loss"]
    starts = np.cumsum([0, *map(len, rows)])
    found = nats_of(opened, np.concatenate(rows), starts, reading_of(opened, 32, 16))
    assert np.nansum(found, dtype=np.float64) == pytest.approx(float(expected), rel=1e-5)
    assert (~np.isnan(found)).sum() == float(weight)


def test_bits_per_byte_by_hand() -> None:
    """Four bits a token; ten tokens, one of them not predicted, over 40 bytes: one bit a byte."""
    one = lm_report.Score(tokens=10, predicted=9, num_bytes=40, nll=9 * 4 * math.log(2))
    assert one.bits_per_byte == pytest.approx(1.0, rel=1e-12)
    # 1 + 3 bits a token, over 12 tokens and 64 bytes: (36 + 2) / 10 x 12 / 64.
    other = lm_report.Score(tokens=2, predicted=1, num_bytes=24, nll=2 * math.log(2))
    both = lm_report.total_of([one, other])
    assert both.bits_per_byte == pytest.approx(3.8 * 12 / 64, rel=1e-12)
    assert lm_report.Score(1, 0, 5, 0.0).bits_per_byte is None


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_the_texts_are_those_of_training(pretrained_runs: Runs, cache_dir, system: str) -> None:
    """Token by token and byte by byte as the training's preparation has them."""
    opened = opened_run(pretrained_runs(system))
    config, module = opened.config, opened.system
    begin, between, end = module.FRAME
    spec = TokenizerSpec(
        config.tokenizer.kind, 300, config.tokenizer.lowercase, module.SPECIAL_TOKENS,
        begin, between, end,
    )  # fmt: skip
    prepared = prepare.prepare_documents(
        config.data.corpus, spec, cache_dir, num_workers=1, progress=False
    )
    corpus = open_corpus(config.data.corpus)
    made = texts.read(corpus, "valid", None, opened.tokenizer, lambda _: None)
    documents = prepared.documents["valid"]
    np.testing.assert_array_equal(made.tokens, documents.tokens)
    expected = np.asarray(documents.sentence_starts)[documents.document_starts]
    np.testing.assert_array_equal(made.starts, expected)
    assert sum(made.num_bytes) == prepared.num_bytes["valid"]
    few = texts.read(corpus, "valid", 3, opened.tokenizer, lambda _: None)
    np.testing.assert_array_equal(few.starts, made.starts[:4])


# --- The program ----------------------------------------------------------------------------------


@pytest.fixture
def start(monkeypatch, capsys) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """start(*arguments) -> exit code, stdout, stderr."""
    monkeypatch.setattr(environment, "configure_jax", lambda *_: None)  # it would outlast the test
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in signals}

    def run(*arguments: Any) -> tuple[int, str, str]:
        code = 0
        try:
            lm.main([str(a) for a in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_from_run_and_corpus_to_tables(
    pretrained_runs: Runs, wikitext, tmp_path, start, system: str
) -> None:
    given = [f"--run={pretrained_runs(system)}", f"--corpus=wikitext:{wikitext}", "--max_docs=9"]
    code, said, errors = start(*given, f"--workdir={tmp_path / 'work'}", "--show=2")
    assert code == 0, errors
    result = json.loads((tmp_path / "work/result.json").read_text())
    header, *lines = (tmp_path / "work/documents.tsv").read_text().splitlines()
    table = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    assert [int(row["document"]) for row in table] == list(range(9))
    for name in ("tokens", "predicted", "bytes", "nll"):
        assert sum(float(row[name]) for row in table) == pytest.approx(result[name], rel=1e-6)
    assert result["predicted"] == result["tokens"] - 9 * (system == "gpt2")
    assert result["loss"] == pytest.approx(result["nll"] / result["predicted"])
    bits = result["loss"] * result["tokens"] / result["bytes"] / math.log(2)
    assert result["bits_per_byte"] == pytest.approx(bits)
    name = "perplexity" if system == "gpt2" else "pseudo_perplexity"
    assert result[name] == pytest.approx(math.exp(result["loss"]))
    assert result["context"] == 32 and result["stride"] == (16 if system == "gpt2" else 15)
    assert f"{result['bits_per_byte']:.4f}" in said and "..." in said
    assert ("PLL/token" in said) == (system == "bert")
    assert "scores: 100%" in errors
    assert json.loads((tmp_path / "work/environment.json").read_text())["packages"]
    code, _, errors = start(*given, f"--workdir={tmp_path / 'work'}")
    assert code == 2 and "is in use" in errors


def test_a_net_that_knows_nothing_has_a_perplexity_of_v(
    pretrained_runs: Runs, wikitext, start, tmp_path, monkeypatch
) -> None:
    opened = opened_run(pretrained_runs("gpt2"))
    empty = jax.tree.map(lambda x: x * 0, opened.params)
    blank = dataclasses.replace(opened, params=empty)
    monkeypatch.setattr(pretrained, "load", lambda _: blank)
    given = [f"--run={opened.path}", f"--corpus=wikitext:{wikitext}", "--max_docs=4"]
    code, said, errors = start(*given, f"--workdir={tmp_path / 'work'}")
    assert code == 0, errors
    result = json.loads((tmp_path / "work/result.json").read_text())
    assert result["perplexity"] == pytest.approx(300, rel=1e-6)
    bits = math.log2(300) * result["tokens"] / result["bytes"]
    assert result["bits_per_byte"] == pytest.approx(bits, rel=1e-6)
    assert "300.000" in said


def test_what_a_tokenizer_loses_is_told(pretrained_runs: Runs) -> None:
    opened = opened_run(pretrained_runs("bert"))
    unknown, cls = (opened.tokenizer.special_ids[role] for role in ("unk", "cls"))
    made = texts.Texts(np.array([unknown, 9, unknown, cls]), np.array([0, 4]), [9], ["x"])
    assert lm_report.notes(opened, made) == [
        "2 tokens are the unknown one: what they stand for is not predicted"
    ]
    tokenizer = dataclasses.replace(opened.config.tokenizer, lowercase=True)
    config = dataclasses.replace(opened.config, tokenizer=tokenizer)
    assert "lowers case" in lm_report.notes(dataclasses.replace(opened, config=config), made)[0]


def test_parameters_that_are_not_finite(pretrained_runs: Runs, wikitext, start, monkeypatch):
    opened = opened_run(pretrained_runs("gpt2"))
    lost = jax.tree.map(lambda x: x * np.nan, opened.params)
    blank = dataclasses.replace(opened, params=lost)
    monkeypatch.setattr(pretrained, "load", lambda _: blank)
    code, _, errors = start(f"--run={opened.path}", f"--corpus=wikitext:{wikitext}", "--max_docs=1")
    assert code == 2 and "not finite" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--run, --corpus"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--stride=0"], "at least 1, got '0'"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--strid=5"], "unrecognized arguments: --strid=5"),
        (["--run=nowhere", "--corpus=wikitext:DIR"], "no run folder 'nowhere'"),
        (["--run=RUN", "--corpus=wikitxt:DIR"], "unknown corpus reader 'wikitxt'.*'wikitext'"),
        (["--run=RUN", "--corpus=wikitext:nowhere"], "expected a folder, found none"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--split=vaild"], "no split 'vaild': .*'valid'"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--context=65"], "65 exceeds the net's 64"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--context=1"], "too short: give at least 2"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--context=8", "--stride=8"], "at most 7"),
        (["--run=RUN", "--corpus=text:BAD", "--split=train"], "--errors=replace"),
    ],
)
def test_what_is_refused(pretrained_runs: Runs, wikitext, tmp_path, start, arguments, message):
    (tmp_path / "bad.txt").write_bytes(b"one\n\ntwo \xff\n\nthree\n")
    names = {"RUN": pretrained_runs("gpt2"), "DIR": wikitext, "BAD": tmp_path / "bad.txt"}
    given = []
    for argument in arguments:
        for name, path in names.items():
            argument = argument.replace(name, str(path))
        given.append(argument)
    code, _, errors = start(*given)
    assert code == 2 and "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert re.search(message, line), line


def test_the_context_is_what_training_showed(pretrained_runs: Runs, tmp_path) -> None:
    opened = opened_run(pretrained_runs("gpt2"))
    assert lm.trained_length(opened) == 32  # its long phase is left out, its positions are 64
    shutil.copytree(opened.path, tmp_path / "run")
    result = tmp_path / "run/result.json"
    result.write_text(json.dumps(json.loads(result.read_text()) | {"imported": {}}))
    assert lm.trained_length(pretrained.load(tmp_path / "run")) == 64


# --- transformers ---------------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_transformers_computes_the_same(pretrained_runs: Runs, tmp_path, system: str) -> None:
    torch = pytest.importorskip("torch")
    import transformers

    from scalelab.interop import exporting

    exporting.run(pretrained_runs(system), tmp_path / "out")
    opened = opened_run(pretrained_runs(system))
    text = "Bada gedu dodo . Gedu bada dodo bada ."
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = opened.tokenizer.encode(text)
    reading = reading_of(opened, 32, 16)
    found = nats_of(opened, ids, np.array([0, len(ids)]), reading)
    row = torch.tensor([theirs(text)["input_ids"]])
    with torch.no_grad():
        if system == "gpt2":
            model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
            expected = float(model(input_ids=row, labels=row).loss) * (len(ids) - 1)
        else:
            model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
            expected = 0.0
            for place in range(1, row.shape[1] - 1):
                masked = row.clone()
                masked[0, place] = theirs.mask_token_id
                scores = model(input_ids=masked).logits[0, place]
                expected -= float(scores.log_softmax(-1)[row[0, place]])
    assert row.numel() == len(ids) + (0 if system == "gpt2" else 2)
    assert float(np.nansum(found, dtype=np.float64)) == pytest.approx(expected, rel=1e-5)
