"""`python -m scalelab.sample` as a user starts it."""

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import in_process
import numpy as np
import pytest

from scalelab import fill_mask, sample
from scalelab.data.tokenizers import Tokenizer
from scalelab.decode import loop, stepper
from scalelab.decode.choose import Rules
from scalelab.resources import host
from scalelab.training import pretrained

Runs = Callable[[str], pathlib.Path]
Start = Callable[..., tuple[int, str, str]]
PROMPTS = ("bada gedu", "dodo.", "a")


@pytest.fixture
def start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pretrained_runs: Runs
) -> Start:
    """start(system or None, *flags) -> exit code, stdout, stderr."""
    monkeypatch.setattr(host, "configure_jax", lambda *_: None)

    def run(system: str | None, *flags: str) -> tuple[int, str, str]:
        given = [f"--run={pretrained_runs(system)}"] if system else []
        return in_process.code(sample, [*given, *flags]), *capsys.readouterr()

    return run


def rows(start: Start, system: str, *flags: str, prompts: Any = PROMPTS) -> list[dict[str, Any]]:
    given = [f"--prompt={prompt}" for prompt in prompts]
    code, out, errors = start(system, "--json", "--max_new_tokens=6", *given, *flags)
    assert code == 0, errors
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("system", ["gpt2", "bert_ltr"])
def test_texts(start: Start, pretrained_runs: Runs, system: str) -> None:
    """The lines are what the loop finds; texts begin as in training."""
    found = rows(start, system, prompts=(*PROMPTS, ""))
    opened = pretrained.load(pretrained_runs(system))
    tokenizer, special = opened.tokenizer, opened.tokenizer.special_ids
    begin = [special["cls"]] if system == "bert_ltr" else []
    ids = [[*begin, *tokenizer.encode(prompt)] for prompt in PROMPTS]
    end = special["sep" if begin else "eos"]
    ids.append(begin or [end])
    made = stepper.prepare(opened.net, opened.params)
    expected = loop.generate(made, ids, Rules(), max_new_tokens=6, max_len=64, end_token=end)
    assert len(found) == 4
    for row, prompt, text in zip(found, (*PROMPTS, ""), expected, strict=True):
        assert row["prompt"] == prompt and row["sample"] == 0
        assert row["tokens"] == text.tokens.tolist() and row["ended_by"] == text.ended_by
        head = tokenizer.decode(tokenizer.encode(prompt))  # to GPT, punctuation is a word
        assert head.replace(" ", "") == prompt.replace(" ", "")
        assert row["text"] == head + row["continuation"] and "endoftext" not in row["text"]
    _, out, _ = start(system, "--max_new_tokens=6", *(f"--prompt={p}" for p in PROMPTS))
    shown = [f"[{i + 1}] {row['text']}" for i, row in enumerate(found[:3])]
    assert out == "\n\n".join(shown) + "\n\n"


def test_a_file_of_prompts(start: Start, tmp_path: pathlib.Path) -> None:
    (tmp_path / "prompts").write_text("\n".join(PROMPTS[1:]) + "\n")
    found = rows(start, "gpt", f"--file={tmp_path}/prompts", prompts=PROMPTS[:1])
    assert found == rows(start, "gpt")


def test_what_is_drawn_depends_on_seed_and_prompt(start: Start) -> None:
    """Not on neighbours, nor on how many texts go through the model at a time."""
    flags = ["--temperature=1.5", "--num_samples=2", "--top_k=90", "--top_p=0.95"]
    found = rows(start, "gpt", *flags, "--batch_size=2")
    assert [row["sample"] for row in found] == [0, 1, 0, 1, 0, 1]
    assert found[0]["tokens"] != found[1]["tokens"]
    assert rows(start, "gpt", *flags) == found
    assert rows(start, "gpt", *flags, prompts=PROMPTS[1:2]) == found[2:4]
    assert rows(start, "gpt", *flags, "--seed=1") != found


def test_beams(start: Start) -> None:
    found = rows(start, "gpt", "--num_beams=3", "--num_samples=2", prompts=PROMPTS[:2])
    assert [row["sample"] for row in found] == [0, 1, 0, 1]
    assert found[0]["score"] > found[1]["score"] and found[0]["tokens"] != found[1]["tokens"]
    _, out, _ = start("gpt", "--num_beams=3", "--max_new_tokens=6", f"--prompt={PROMPTS[0]}")
    assert out == f"[1] {found[0]['text']}\n\n"


def test_repetition_flags(start: Start) -> None:
    (plain,) = rows(start, "gpt2", prompts=PROMPTS[:1])
    (stopped,) = rows(start, "gpt2", "--repetition_stop=1", prompts=PROMPTS[:1])
    assert len(set(plain["tokens"])) < len(plain["tokens"])
    assert stopped["ended_by"] == "repetition"
    assert stopped["tokens"] == plain["tokens"][: len(stopped["tokens"])]
    (lowered,) = rows(start, "gpt2", "--repetition_penalty=1e9", prompts=PROMPTS[:1])
    assert len(set(lowered["tokens"])) == len(lowered["tokens"])


def test_a_masked_net_draws_by_turns(start: Start, pretrained_runs: Runs) -> None:
    """At temperature 0, each token is the best one given all others where sweeps change nothing."""
    flags = ["--sweeps=3", "--temperature=1", "--num_samples=2"]
    found = rows(start, "bert", *flags, prompts=(*PROMPTS, ""))
    assert len(found) == 8 and found[0]["tokens"] != found[1]["tokens"]
    assert rows(start, "bert", *flags, "--batch_size=2", prompts=PROMPTS[1:2]) == found[2:4]
    assert rows(start, "bert", *flags, "--seed=1", prompts=PROMPTS[1:2]) != found[2:4]
    (best,) = rows(start, "bert", "--sweeps=20", "--order=left_to_right", prompts=PROMPTS[:1])
    opened = pretrained.load(pretrained_runs("bert"))
    special, frame = opened.tokenizer.special_ids, opened.tokenizer.frame()
    assert not set(special.values()) & {i for row in [*found, best] for i in row["tokens"]}
    text = [*frame.begin, *opened.tokenizer.encode(PROMPTS[0]), *best["tokens"], *frame.end]
    for place in range(len(text) - len(frame.end) - 6, len(text) - len(frame.end)):
        row = np.array(text, np.int32)
        row[place] = special["mask"]
        (fillings,) = next(fill_mask.fill(opened, [row], 10))
        ids = [f.token_id for f in fillings if f.token_id not in special.values()]
        assert ids[0] == text[place]


@pytest.mark.parametrize(("system", "flags"), [
    ("glm", ["--special", "--source=bada [MASK] gedu"]), ("bart", ["--source=bada gedu"]),
])  # fmt: skip
def test_sources(start: Start, system: str, flags: list[str]) -> None:
    """One with a mask for a model that fills masks; any other model needs none."""
    code, out, errors = start(system, "--max_new_tokens=6", *flags)
    assert code == 0 and out.startswith("[1] "), errors


@pytest.mark.parametrize(("system", "flags", "message"), [
    (None, ["--prompt=x"], "--run is missing"),
    (None, ["--prompt=x", "--run=nowhere"], "nowhere"),
    ("gpt", [], "no prompt: .*--file=FILE"),
    ("gpt", ["--file=nowhere.txt"], "No such file.*nowhere.txt"),
    ("gpt", ["--prompt=x", "--top_p=0.5"], "top_p = 0.5: .* temperature"),
    ("gpt", ["--prompt=x", "--num_samples=2"], "--temperature=1"),
    ("gpt", ["--prompt=x", "--num_beams=2", "--top_k=3"], "--top_k"),
    ("gpt", ["--prompt=x", "--num_beams=2", "--num_samples=3"], "--num_samples=3"),
    ("gpt", ["--prompt=x", "--num_beams=151"], "300 tokens"),
    ("gpt2", ["--prompt=x", "--max_new_tokens=64"], "1 .* 64 .*max_len is 64"),
    ("bert", ["--prompt=x", "--num_beams=2"], "masked .*--num_beams"),
    ("bert", ["--prompt=x", "--max_new_tokens=64"], "3 .* 64 .*max_len is 64"),
    ("bert", ["--prompt=x", "--source=y"], "no source"),
    ("gpt", ["--prompt=x", "--sweeps=2"], "next .*--sweeps"),
    ("glm", ["--source=bada gedu"], r"'bada gedu' .*--special --source=.*\[MASK\]"),
    ("glm", ["--source=bada [MASK] gedu"], "--special"),
    ("glm", ["--special", "--source=a [MASK]", "--source=b"], "'b' has no mask"),
    ("glm", ["--special", "--source=a [MASK]", "--prompt=b<|endofpiece|>"], "fills all masks"),
    ("glm", ["--special", "--source=a [MASK] b [MASK]", "--num_beams=2"], "num_beams.*found 2"),
    ("glm", ["--special", "--source=[MASK] a [MASK]", "--repetition_stop=1"], "_stop.*found 2"),
])  # fmt: skip
def test_bad_input(start: Start, system: str | None, flags: list[str], message: str) -> None:
    code, out, errors = start(system, *flags)
    assert code == 2 and out == "" and "Traceback" not in errors
    found = re.findall(r"^error: .*", errors, re.MULTILINE)
    assert len(found) == 1 and re.search(message, found[0]), errors


def test_a_prompt_begins_the_texts_of_masks(start: Start) -> None:
    """The first mask is "bada", the second begins with "gedu", the third is all the model's."""
    given = "--special", "--source=dodo [MASK] mumu [MASK] zizi [MASK]", "--max_new_tokens=3"
    code, out, errors = start("glm", *given, "--prompt=bada<|endofpiece|>gedu", "--json")
    assert code == 0, errors
    found = json.loads(out)
    text = found["text"].replace(" ", "")
    assert found["ended_by"] == "length" and errors.count("text 1 has masks") == 1, errors
    assert text.startswith("dodobadamumugedu") and "endofpiece" not in text, text


@pytest.mark.parametrize("source", ["", " \t", "\u200b\U0001f422"])
def test_an_empty_source_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A model would write an invented text; a tokenizer may also read a text as nothing."""
    encode = Tokenizer.encode
    blind = lambda self, text: encode(self, text if text.isascii() else "")  # noqa: E731
    monkeypatch.setattr(Tokenizer, "encode", blind)
    code, out, errors = start("t5", "--source=bada", f"--source={source}")
    assert code == 2 and out == ""
    assert len(re.findall("^error: ", errors, re.MULTILINE)) == 1 and repr(source) in errors


def test_a_long_source_is_read_where_no_position_lacks(start: Start) -> None:
    """T5 reads it whole: its last word counts. BART has 64 positions."""
    long = "bada gedu dodo " * 40
    given = "--json", "--max_new_tokens=4", "--num_beams=3"
    found = {}
    for last in ("zizi", "mumu"):
        code, out, errors = start("t5", f"--source={long}{last}", *given)
        assert code == 0, errors
        found[last] = json.loads(out)["score"]
    assert found["zizi"] != found["mumu"]
    code, out, errors = start("bart", f"--source={long}", *given)
    assert code == 2 and out == "" and "Traceback" not in errors
    assert len(re.findall("^error: a --source has .* 64 positions", errors, re.MULTILINE)) == 1
