"""Recall, copies and reversed texts: examples by hand, accounting, and the files."""

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from law_folders import fails

from scalelab.tasks.task import load, load_task
from scalelab.worlds import __main__ as program
from scalelab.worlds.sequences import TASKS, Pair, Sequences

SOURCE = Sequences(num_letters=8, num_pairs=3, shortest=2, longest=5)


class Fixed:
    """A generator whose draws are given; permutations and integers in the order of the calls."""

    def __init__(self, *draws: Any) -> None:
        self.draws = iter(draws)

    def permutation(self, size: int) -> np.ndarray:
        del size
        return np.array(next(self.draws))

    def integers(self, *args: int, **kwargs: Any) -> Any:
        del args, kwargs
        return np.array(next(self.draws))


def drawn(task: str, *draws: Any) -> tuple[list[int], list[int]]:
    generator: Any = Fixed(*draws)
    source, target = SOURCE.pair(task, generator)
    return source.tolist(), target.tolist()


def test_by_hand() -> None:
    # Keys 3, 1, 2 have values 7, 5, 7; the keys are asked for in the order 1, 2, 3.
    made = drawn("recall", [3, 1, 2, 0], [3, 1, 3], [1, 2, 0])
    assert made == ([3, 7, 1, 5, 2, 7, 1, 2, 3], [1, 5, 2, 7, 3, 7])
    assert drawn("copy", 3, [0, 2, 1]) == ([0, 2, 1], [0, 2, 1])
    assert drawn("reverse", 3, [0, 2, 1]) == ([0, 2, 1], [1, 2, 0])


def answers(source: np.ndarray) -> list[int]:
    """The target of `recall`, read off the source word by word; each key must occur once."""
    words, num = source.tolist(), len(source) // 3
    keys, values, asked = words[: 2 * num : 2], words[1 : 2 * num : 2], words[2 * num :]
    assert len(set(keys)) == num and sorted(asked) == sorted(keys)
    assert max(keys) < 4 <= min(values)
    return [word for key in asked for word in (key, values[keys.index(key)])]


def is_right(made: Pair) -> bool:
    return answers(made[0]) == made[1].tolist()


def shifted(source: np.ndarray) -> Pair:
    """A wrong variant: each key gets the value of the pair before its own."""
    num = len(source) // 3
    values = np.roll(source[1 : 2 * num : 2], 1)
    wrong = source.copy()
    wrong[1 : 2 * num : 2] = values
    return source, np.array(answers(wrong))


def test_each_key_is_asked_for_once_and_has_its_value() -> None:
    rng = np.random.default_rng(0)
    pairs = [SOURCE.pair("recall", rng) for _ in range(300)]
    assert all(map(is_right, pairs))
    assert sum(is_right(shifted(source)) for source, _ in pairs) < 60


def by_place(place: Callable[[int], int], pairs: list[Pair]) -> float:
    """The share of values that a rule finds: the k-th one asked for stands at the place(k)-th."""
    hits = [s[2 * place(k) + 1] == t[2 * k + 1] for s, t in pairs for k in range(len(t) // 2)]
    return float(np.mean(hits))


def test_places_do_not_tell_values() -> None:
    source, rng = Sequences(num_letters=64, num_pairs=8, shortest=1, longest=1), np.random
    pairs = [source.pair("recall", rng.default_rng(seed)) for seed in range(2000)]
    chance = 1 / 8 + 7 / 8 / 32  # the place, or an equal value at a wrong one
    for place in (lambda k: k, lambda k: 7 - k, lambda k: 0):
        assert by_place(place, pairs) == pytest.approx(chance, abs=0.012)
    in_order = [(s, s[:16]) for s, _ in pairs]  # a wrong variant: keys are asked for in their order
    assert by_place(lambda k: k, in_order) == 1


def test_lengths_are_uniform() -> None:
    rng = np.random.default_rng(0)
    lengths = [len(SOURCE.pair("copy", rng)[0]) for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(lengths), [0, 0, *4 * [1000]], atol=120)


def written(folder: pathlib.Path, **own: Any) -> dict[str, Any]:
    given = {"kind": "sequences", "documents": 20, "seed": 3, "tasks_examples": 40} | own
    return program.write(argparse.Namespace(**given, to=folder))


def test_the_files(tmp_path: pathlib.Path) -> None:
    facts = [written(tmp_path / name, num_letters=8, num_pairs=4) for name in ("a", "b")][0]
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    assert facts["nats_per_word"] == pytest.approx(np.log(8))
    place = {word: i for i, word in enumerate(facts["words"])}
    text = (tmp_path / "a/wiki.train.raw").read_text()
    assert len(place) == 8 and place.keys() == {w for w in text.split() if w.islower()}
    for task in TASKS:
        splits = load(load_task(task), tmp_path / "a/tasks")
        records = splits.train, *splits.dev.values()
        assert (
            [len(own.texts[0]) for own in records if own]
            == [40, 10, 10]
            == [*facts["pairs"].values()]
        )
        for text, label in zip(records[0].texts[0], records[0].labels, strict=True):
            source, target = (
                [place[word] for word in own.split()] for own in (text, json.loads(label)[0][0])
            )
            expected = {"copy": source, "reverse": source[::-1]}.get(task)
            assert target == (answers(np.array(source)) if expected is None else expected)
            assert len(source) == 12 if task == "recall" else 5 <= len(source) <= 60
    written(tmp_path / "c", tasks_examples=0)
    assert not (tmp_path / "c/tasks").exists()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--num_letters=7"], "even number"),
    (["--num_pairs=17"], "1 to 16"),
    (["--num_pairs=0"], "1 to 16"),
    (["--shortest=9", "--longest=8"], "shortest <= longest"),
    (["--num_letters=2", "--num_pairs=1"], "too small for so many pairs"),
])  # fmt: skip
def test_mistakes_leave_no_folder(
    arguments: list[str], message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--to={tmp_path}/world", "--documents=5", "--kind=sequences", *arguments]
    assert message in fails(capsys, program, *given)
    assert not (tmp_path / "world").exists()
