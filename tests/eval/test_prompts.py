"""Prompts: files of every layout, demonstrations, what fits, planted answers, transformers."""

import functools
import json
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from task_folders import read_seed, write_text
from test_sentence_scores import opened_run

from scalelab.eval import compare, lm, pairs, prompts
from scalelab.eval.prompts import Example
from scalelab.lab.compare import estimates

OPTIONS = {name: default for name, (default, _) in prompts.OPTIONS.items()}
TRAIN = [
    Example("SST-2", True, (f"bada {'gedu ' * (k % 3)}dodo {k}",), int(k % 5 == 0))
    for k in range(30)
]
DEV = [Example("SST-2", False, ("bada gedu " * (1 + k % 3),), k % 2) for k in range(12)]


write = functools.partial(write_text, encoding="latin-1")


def test_files(tmp_path) -> None:
    write(tmp_path / "SST-2/dev.tsv", 'sentence\tlabel\na "fine film \t1\n')
    write(tmp_path / "SST-2/train.tsv", "sentence\tlabel\na bore\t0\n")
    write(tmp_path / "agnews/test.csv", '"4","A chip","It is ""fast"", we\\\\hear."\n')
    write(tmp_path / "agnews/16-shot/16-13/train.tsv", "text\tlabel\nA ball\t1\n")
    write(tmp_path / "trec/TREC.test", "NUM:dist How far is \xf0 ?\n")
    row = {"premise": "A b.", "hypothesis": "C.", "label": "neutral", "idx": 0}
    write(tmp_path / "CB/val.jsonl", json.dumps(row) + "\n")
    row = {"question": "is it", "passage": "It is.", "label": False}
    write(tmp_path / "BoolQ/val.jsonl", json.dumps(row) + "\n")
    found = prompts.read(tmp_path)
    assert [(own.task, own.is_train, own.label) for own in found] == [
        ("SST-2", True, 0), ("SST-2", False, 1), ("AG News", True, 1), ("AG News", False, 3),
        ("TREC", False, 5), ("CB", False, 2), ("BoolQ", False, 1),
    ]  # fmt: skip
    item = prompts.ask(found[-1], "One. ")
    assert item.texts == ("One. It is. Question: is it? Answer: true.",
                          "One. It is. Question: is it? Answer: false.")  # fmt: skip
    assert item.spans is not None and item.right == 1
    words = [t[slice(*(own or ())[0])] for t, own in zip(item.texts, item.spans, strict=True)]
    assert words == [" true", " false"]
    assert found[1].texts == ('a "fine film',) and "\xf0" in found[4].texts[0]
    write(tmp_path / "CB/val.jsonl", json.dumps({**row, "premise": "", "hypothesis": ""}) + "\n")
    with pytest.raises(ValueError, match=r"val\.jsonl: label False"):
        prompts.read(tmp_path)
    with pytest.raises(ValueError, match=r"expected one of SST-2/dev\.tsv"):
        prompts.read(tmp_path / "CB")


def test_every_template_has_its_texts_and_one_gap() -> None:
    for name, task in prompts.TASKS.items():
        example = Example(name, False, tuple(f"<{key}>" for key in task.keys), 0)
        text, (a, b) = prompts.render(example, "WORD")
        assert text[a:b] == " WORD" and all(text.count(own) == 1 for own in example.texts)
        assert len({*task.words.values()}) == len(task.words)


def test_demonstrations_are_balanced_drawn_by_seed_and_reordered() -> None:
    drawn = prompts.demonstrate("SST-2", TRAIN, OPTIONS | {"shots": 6, "seeds": 3, "orders": 2})
    assert len(drawn) == 6 and len({tuple(own) for own in drawn}) == 6
    for seed in range(3):
        first, second = drawn[2 * seed : 2 * seed + 2]
        assert sorted(first) == sorted(second) and len(set(first)) == 6
        assert Counter("good" in text for text in first) == {True: 3, False: 3}
    assert len({tuple(sorted(own)) for own in drawn}) == 3
    assert prompts.demonstrate("SST-2", TRAIN, OPTIONS) == [[]]
    control = OPTIONS | {"shots": 20, "random_labels": True}
    (given,) = prompts.demonstrate("SST-2", TRAIN, control)
    (true,) = prompts.demonstrate("SST-2", TRAIN, control | {"random_labels": False})
    same = [a == b for a, b in zip(given, true, strict=True)]
    assert 4 < sum(same) < 16
    assert [a.split(" It was")[0] for a in given] == [b.split(" It was")[0] for b in true]
    with pytest.raises(ValueError, match="30 training examples"):
        prompts.demonstrate("SST-2", TRAIN, OPTIONS | {"shots": 31})


@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_nothing_is_cut(pretrained_runs, system: str) -> None:
    """All prompts fit; what does not is counted, and demonstrations are dropped by name."""
    opened = opened_run(pretrained_runs(system))
    room = lm.make_reading(opened, None, None).context
    dev = [*DEV, Example("SST-2", False, ("dodo " * 99,), 0)]
    for shots, orders in ((0, 1), (8, 3)):
        options = OPTIONS | {"shots": shots, "orders": orders}
        made, fits, bare, notes = prompts.choose(opened, [*TRAIN, *dev], options)
        assert len(made) == orders and {len(prompt) for prompt in made} == {13}
        texts = [[text for prompt in made for text in prompt[k].texts] for k in range(13)]
        longest = [max(map(len, opened.tokenizer.encode_batch(own))) for own in texts]
        assert fits.tolist() == [length <= room for length in longest]
        assert 0 < fits.sum() < 13 and " It was" in bare[0] and bare[0].count(" It was") == 1
        assert f"SST-2: {13 - fits.sum()} of 13 prompts are longer than {room}" in notes[-1]
        (dropped,) = notes[:-1] or [None]
        assert (dropped is None) == (shots == 0)
        if dropped:
            num = int(dropped.split()[1])
            assert 0 <= num < 8 and all(x.count(" It was ") == num + 1 for x in sum(texts, []))
    short = [own._replace(texts=(f"{k}",)) for k, own in enumerate([*TRAIN, *DEV])]
    (few,), *_ = prompts.choose(opened, short, OPTIONS | {"examples": 5})
    (again,), *_ = prompts.choose(opened, short, OPTIONS | {"examples": 5})
    assert len({item.texts for item in few}) == 5 and few == again


def test_a_planted_net(pretrained_runs, monkeypatch, tmp_path) -> None:
    """Right in 3 of 4 prompts with log-odds 1, wrong in the fourth with log-odds 9."""
    rng = np.random.default_rng(0)
    wrong_everywhere = rng.random(12) < 0.25

    def planted(opened: Any, asked: Any, *_: object, **__: object) -> tuple[np.ndarray, np.ndarray]:
        sums = np.zeros((len(asked), 2))
        for k, item in enumerate(asked):
            prompt, place = divmod(k, 12)
            odds = -1.0 if wrong_everywhere[place] else (-9.0 if prompt == 3 else 1.0)
            sums[k, item.right] = odds
        return sums - 5.0, np.ones_like(sums)

    monkeypatch.setattr(pairs, "score", planted)
    options = OPTIONS | {"shots": 1, "seeds": 2, "orders": 2}
    asked = prompts.Asked(tmp_path / "partial.npz", tmp_path, options)
    short = [own._replace(texts=("bada",)) for own in [*TRAIN, *DEV]]
    made = prompts.measure(opened_run(pretrained_runs("gpt2")), short, asked)
    share = 1 - wrong_everywhere.mean()
    row = made.table.set_index("group").loc["SST-2"]
    # The mean probability of the right label is (3 x 0.73 + 0.0) / 4 = 0.55.
    assert row["accuracy"] == made.scores["accuracy"] == pytest.approx(share)
    assert row[["mean", "worst", "best"]].tolist() == pytest.approx([0.75 * share, 0.0, share])
    assert row["majority"] == 0.5
    low, high = estimates.wilson([(share, 12)])
    assert row[["low", "high"]].tolist() == pytest.approx([low, high])
    assert (made.outputs.argmax(axis=1) == made.gold).mean() == pytest.approx(share)


def test_the_program(pretrained_runs, tmp_path, monkeypatch, start, refused) -> None:
    program = functools.partial(start, "prompts")
    longer = [Example("SST-2", False, ("7 " * k,), k % 2) for k in range(12)]
    for name, examples in (("train", TRAIN), ("dev", [*DEV, *longer])):
        rows = "".join(f"{own.texts[0]}\t{int(own.label)}\n" for own in examples)
        write(tmp_path / f"data/SST-2/{name}.tsv", "sentence\tlabel\n" + rows)
    tied = []
    for system, rule in (("gpt2", "log_likelihood"), ("bert", "pll_word")):
        work = tmp_path / system
        given = [f"--run={pretrained_runs(system)}", f"--data={tmp_path / 'data'}"]
        code, out, errors = program(*given, f"--workdir={work}", "--shots=1", "--orders=1")
        assert code == 0, errors
        assert f"rule {rule}, 1 shots, 1 prompts" in out
        result, made = read_seed(work)
        assert result.eval["dev"] == {"accuracy": (made.gold == made.predicted).mean()}
        assert "random_labels differs" in refused(
            "prompts", *given, f"--workdir={work}", "--shots=1", "--random_labels"
        )
        tied.append([line.split()[2] for line in out.split("\n") if "as ties" in line])
    assert tied[0] != tied[1]  # and the models compare all the same
    sides = (compare.open_system(str(tmp_path / system)) for system in ("gpt2", "bert"))
    assert len(compare.compare(*sides, allow_recipe=True)[0]) == 1
    words = {"0": "\u2603", "1": "\u2604"}
    monkeypatch.setitem(prompts.TASKS, "SST-2", prompts.TASKS["SST-2"]._replace(words=words))
    assert "cannot write 24 of the 24 answers" in refused(
        "prompts", *given, f"--workdir={tmp_path / 'unknown'}"
    )
    for wrong, expected in (("--random_labels", "--shots"), ("--seeds=0", "1 or more")):
        assert expected in refused("prompts", *given, f"--workdir={tmp_path / 'wrong'}", wrong)


@pytest.mark.parity
def test_transformers_scores_the_label_words_the_same(pretrained_runs, exported) -> None:
    torch = pytest.importorskip("torch")
    theirs, model = exported("gpt2")
    opened = opened_run(pretrained_runs("gpt2"))
    short = [own._replace(texts=("bada",)) for own in [*TRAIN, *DEV[:2]]]
    (asked,), *_ = prompts.choose(opened, short, OPTIONS | {"shots": 1})
    request = prompts.Asked(None, pathlib.Path(), OPTIONS)
    sums, _ = pairs.score(opened, asked, "log_likelihood", request)
    for item, found in zip(asked, sums, strict=True):
        assert item.spans is not None
        for text, span, score in zip(item.texts, item.spans, found, strict=True):
            assert span is not None
            before = theirs(text[: span[0][0]])["input_ids"]
            whole = theirs(text[: span[0][1]])["input_ids"]
            row = torch.tensor([whole])
            with torch.no_grad():
                chances = model(input_ids=row).logits[0].log_softmax(-1)
            expected = sum(float(chances[t - 1, whole[t]]) for t in range(len(before), len(whole)))
            assert score == pytest.approx(expected, abs=1e-4)
