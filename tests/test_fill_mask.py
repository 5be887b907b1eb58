"""Filling masks: against the model's own scores and the pipeline of transformers, and the
program."""

import functools
import json
import pathlib
import re
from collections.abc import Callable

import law_folders
import numpy as np
import pytest
import tiny
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from scalelab import fill_mask, systems
from scalelab.resources import host
from scalelab.training import pretrained

Runs = Callable[[str], pathlib.Path]
MASKED = [system for system in tiny.SYSTEMS if systems.load(system).PREDICTS == "masked"]
opened_run = functools.cache(pretrained.load)


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
@pytest.mark.parametrize("system", MASKED)
def test_only_masks_are_special(pretrained_runs: Runs, system: str, mask: str) -> None:
    opened = opened_run(pretrained_runs(system))
    tokenizer, frame = opened.tokenizer, opened.tokenizer.frame()
    mask_id = tokenizer.special_ids["mask"]
    ids = fill_mask.encode(f"bada {mask} [SEP] </s>{mask}", opened)
    expected = [
        *frame.begin, *tokenizer.encode("bada"), mask_id, *tokenizer.encode(" [SEP] </s>"), mask_id,
        *frame.end,
    ]  # fmt: skip
    assert ids.tolist() == expected


# --- The program ----------------------------------------------------------------------------------


@pytest.fixture
def start(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """start(*arguments) -> exit code, stdout, stderr."""
    monkeypatch.setattr(host, "configure_jax", lambda *_: None)  # it would outlast the test
    return functools.partial(law_folders.start, capsys, fill_mask)


def test_what_is_printed(pretrained_runs: Runs, start) -> None:
    given = [f"--run={pretrained_runs('bert')}", "--top=3", "bada [MASK] <mask>", "[MASK] gedu"]
    code, out, errors = start(*given)
    assert code == 0, errors
    lines = out.splitlines()
    assert [line for line in lines if line[0] != " "] == given[2:]
    assert [line for line in lines if "mask" in line[:7]] == ["  mask 1 of 2", "  mask 2 of 2"]
    answers = [re.fullmatch(r"  (0\.\d{4})  (\".*\") +(.+)", line) for line in lines]
    assert sum(answer is not None for answer in answers) == 9
    code, out, _ = start(*given, "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    assert [(found["text"], found["mask"]) for found in objects] == [
        (given[2], 0), (given[2], 1), (given[3], 0),
    ]  # fmt: skip
    first = objects[0]["fillings"][0]
    assert f"  {first['probability']:.4f}  {json.dumps(first['token'])}" in lines[2]
    assert lines[2].endswith(first["text"]) and "[MASK]" in first["text"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["--run=RUN"], "required: TEXT"),
    (["--run=RUN", "bada gedu"], r"'bada gedu': .*\[MASK\]"),
    (["--run=RUN", "[MASK]" * 63], "has 65 tokens.* 64 positions"),
    (["--run=RUN", "--top=0", "[MASK]"], "--top=0: .*300"),
    (["--run=RUN", "[MASK] \udcff"], "utf-8"),
    (["--run=GPT", "bada [MASK]"], "is a gpt2 .*python -m scalelab.sample"),
])  # fmt: skip
def test_what_is_refused(pretrained_runs: Runs, start, arguments, message: str) -> None:
    runs = {"RUN": pretrained_runs("bert"), "GPT": pretrained_runs("gpt2")}
    given = [
        functools.reduce(lambda a, n: a.replace(n, str(runs[n])), runs, argument)
        for argument in arguments
    ]
    code, out, errors = start(*given)
    assert code == 2 and not out
    (line,) = errors.splitlines()
    assert re.search(message, line), line


# --- transformers ---------------------------------------------------------------------------------


def filled_alike(opened, pipe, text: str) -> tuple[list, list]:
    """The fillings by us and by the pipeline, which are the same tokens as likely."""
    row, theirs = fill_mask.encode(text, opened), pipe(text)
    ((ours,),) = fill_mask.fill(opened, [row], 20)
    assert [f.token_id for f in ours] == [answer["token"] for answer in theirs]
    scores = [answer["score"] for answer in theirs]
    np.testing.assert_allclose([f.probability for f in ours], scores, rtol=1e-4)
    return ours, theirs


@pytest.mark.parity
@pytest.mark.parametrize("system", MASKED)
def test_the_pipeline_fills_the_same(pretrained_runs: Runs, tmp_path, system: str) -> None:
    pytest.importorskip("torch")
    import transformers

    from scalelab.interop import exporting, maps

    if not maps.load(system).fills_masks:
        pytest.skip("its class has no such states")
    exporting.run(pretrained_runs(system), tmp_path / "out")
    pipe = transformers.pipeline("fill-mask", model=str(tmp_path / "out"), top_k=20)
    opened = opened_run(pretrained_runs(system))
    for text in ("bada [MASK] gedu dodo.", "[MASK] bada", "bada[MASK]"):
        ours, theirs = filled_alike(opened, pipe, text.replace("[MASK]", pipe.tokenizer.mask_token))
        assert [f.token for f in ours] == [answer["token_str"] for answer in theirs]
        special = opened.tokenizer.special_ids.values()  # the pipeline leaves them out of texts
        texts = [(f.text, t["sequence"]) for f, t in zip(ours, theirs, strict=True)
                 if f.token_id not in special]  # fmt: skip
        assert texts and all(a == b for a, b in texts)


@pytest.mark.parity
def test_an_import_fills_as_its_source(tmp_path) -> None:
    """As RoBERTa lies on the hub: a mask that swallows the space before it, an own processor."""
    pytest.importorskip("torch")
    import peers
    import real_text
    import transformers

    from scalelab.interop import importing

    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    mask = tokenizers.AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", mask],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(real_text.lines(), trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>"}
    named = {f"{role}_token": text for role, text in (roles | {"pad": "<pad>"}).items()}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, mask_token="<mask>", **named
    )
    theirs.save_pretrained(tmp_path / "theirs")
    model = peers.make("roberta", (2, 8, 1), 24, vocab_size=300)
    model.float().save_pretrained(tmp_path / "theirs")
    pipe = transformers.pipeline("fill-mask", model=str(tmp_path / "theirs"), top_k=20)
    importing.run(str(tmp_path / "theirs"), tmp_path / "run")
    opened = pretrained.load(tmp_path / "run")
    ours, answers = filled_alike(opened, pipe, "the license <mask> shall mean")
    assert [f.text for f in ours] == [answer["sequence"] for answer in answers]
