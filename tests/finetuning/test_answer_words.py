"""Choices and answers as text: prompts by hand, answers of a question together."""

import dataclasses

import numpy as np
import pytest
from test_words import one_bucket, prepare, translator  # noqa: F401

from scalelab.finetuning import prompts, results
from scalelab.tasks.records import Records
from scalelab.tasks.task import TASKS, as_text, load_task

COPA = Records(
    (["me so", "up so"], ["go", "if me"], ["in", "dad"]), np.array([1, 0], np.int32), "", "copa"
)
MULTIRC = Records(
    (["go up", "me"], ["if\ntree\nin it", "at\nno\ndo\nup"]), np.array(["1 0", "0 1 1"]), "", "rc"
)
PROMPTS = {
    "superglue_copa": (COPA, [
        "say: me so choice1: go choice2: in",
        "say: up so choice1: if me choice2: dad",
    ], ["choice2", "choice1"]),
    "superglue_multirc": (MULTIRC, [
        "say: go up question: if answer: tree",
        "say: go up question: if answer: in it",
        "say: me question: at answer: no",
        "say: me question: at answer: do",
        "say: me question: at answer: up",
    ], ["true", "false", "false", "true", "true"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("system", ["gpt2", "translator"])
def test_the_prompt_has_all_texts_and_the_target_its_word(prepare, system: str, name: str) -> None:  # noqa: F811
    records, read, words = PROMPTS[name]
    task = dataclasses.replace(load_task(name), prompt="say:")
    run = prepare(system, "text", task=task, records=records, batch_size=2)
    assert not run.train.truncated.any()
    batch = run.train.gather(np.arange(len(read)), 60)
    room = 0 if run.has_source else batch["labels"].shape[1] - 1
    rows = [row[: n - room] for row, n in zip(batch["tokens"], batch["lengths"], strict=True)]
    tail = "" if run.has_source else " label:"
    eos = run.tokenizer.special_ids["eos"]
    shown = [run.tokenizer.decode(row[row != eos]) for row in rows]
    assert [text.replace(" ", "") for text in shown] == [
        f"{x}{tail}".replace(" ", "") for x in read
    ]
    targets = [row[(row >= 0) & (row != eos)] for row in batch["labels"]]
    assert [run.tokenizer.decode(row).strip() for row in targets] == words


def test_answers_are_grouped_and_invalid_ones_are_counted(prepare) -> None:  # noqa: F811
    run = prepare(
        "gpt2", "text", task=load_task("superglue_multirc"), records=MULTIRC, batch_size=2
    )
    found = np.array(
        [[1, 1], [0, 1], [1, 0], [1, 1], [0, 0]], np.float32
    )  # class, and valid or not
    made = results.decode(run, "dev", found)
    assert made.answers.tolist() == ["1 0", "1 1 0"] and len(made.invalid) == 2
    measured = results.measure(run, {"dev": found})["dev"]
    assert measured == {"f1a": pytest.approx(2 * 2 / (3 + 3)), "question_match": 0.5}
    (remark,) = results.describe_invalid(run, {"dev": made})
    assert "no label, replaced by the best of the labels: 2 of 5 (dev: '' 2)" in remark
    assert run.train.first(3).labels.shape[0] == 3  # `max_train_examples` counts answers


def test_a_score_becomes_a_rounded_string(prepare) -> None:  # noqa: F811
    """As T5's stsb() writes it, round(5 x) / 5 with one digit (Raffel et al. 2020, 2.4)."""
    scores = np.arange(0, 501, dtype=np.float32) / np.float32(100)
    texts = ["go"] * len(scores)
    records = Records((texts, texts), scores, "", "")
    run = prepare("gpt2", "text", task=load_task("stsb"), records=records, batch_size=2)
    rows = run.train.gather(np.arange(len(scores)), 60)["labels"]
    found = [prompts.text_of(row, run.task, run.reading) for row in rows]
    assert found == [f"{np.round(5 * score) / 5:.1f}" for score in scores]
    hand = {257: "2.6", 249: "2.4", 0: "0.0", 9: "0.0", 11: "0.2", 500: "5.0", 489: "4.8"}
    assert {place: found[place] for place in hand} == hand


def test_which_tasks_have_words() -> None:
    """Each label has a word of its own; only tags have none."""
    refused = []
    for task in TASKS.values():
        try:
            made = as_text(task)
        except ValueError as error:
            assert "--as=text generates label words" in str(error)
            refused.append(task.name)
            continue
        if task.labels is not None:
            assert len(set(made.class_names)) == len(task.labels), task.name
            assert made.labels == task.labels  # predictions and scores have the task's labels
    assert refused == ["ner", "pos"]
    assert as_text(load_task("superglue_wsc")).class_names == ("false", "true")
    assert as_text(load_task("swag")).class_names == ("ending0", "ending1", "ending2", "ending3")
