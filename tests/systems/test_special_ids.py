"""Special tokens by role: a system's build, its format and its objectives ask for their ids."""

import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scratch
import tiny

from scalelab import objectives, state, systems
from scalelab.config import pretraining
from scalelab.data import tokenizers
from scalelab.objectives import capitals, clm, mlm
from scalelab.training.pretrained import Pretrained

TOKENS = (("pad", "<pad>"), ("eos", "</s>"), ("sentinel_1", "<b>"), ("sentinel_0", "<a>"))
OWN = {"pad": 0, "eos": 1, "sentinel_1": 2, "sentinel_0": 3, "start": 0}
FOREIGN = {"sentinel_0": 11, "sentinel_1": 10, "eos": 3, "pad": 2}  # ids of another tokenizer
ASKED = dict[str, Any]


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[ASKED]:
    """A system and an objective that keep the ids which they get."""
    found: ASKED = {}
    gpt2, order = systems.load("gpt2"), iter(("build", "build again"))

    def build(sizes: systems.Sizes, options: Any, vocab_size: int) -> Any:
        found[next(order)] = dict(sizes.special_ids)
        return gpt2.build(sizes, options, vocab_size)

    def make(setting: objectives.Setting, options: None) -> Any:
        found["objective"] = dict(setting.special_ids)
        return clm.make(setting)

    departures = [d for d in gpt2.DEPARTURES if d.field != "objective"]
    scratch.add(monkeypatch, "objectives", "kept", **vars(clm) | {"make": make})
    scratch.add(monkeypatch, "systems", "keeper", **vars(gpt2) | {
        "DEPARTURES": [*departures, systems.Departure("objective", "kept", "")],
        "SPECIAL_TOKENS": TOKENS, "FRAME": ((), (), ()), "START": "pad", "build": build,
    })  # fmt: skip
    yield found


def config() -> pretraining.Config:
    return pretraining.resolve(tiny.values("system=keeper,steps=2"))


@pytest.mark.parametrize(("given", "expected"), [
    (None, OWN), (FOREIGN, FOREIGN | {"start": 2}),
])  # fmt: skip
def test_build_and_objective_get_the_ids_of_the_tokenizer(
    asked: ASKED, given: dict[str, int] | None, expected: dict[str, int]
) -> None:
    state.make_model(config(), given)
    assert asked == {"build": expected, "objective": expected}


def test_a_run_that_is_opened_builds_the_same_net(asked: ASKED) -> None:
    nothing: Any = None
    tokenizer: Any = types.SimpleNamespace(special_ids=FOREIGN, joins=b"")
    module = systems.load("keeper")
    opened = Pretrained(nothing, config(), module, tokenizer, nothing, 0, True)
    assert opened.net is not None
    assert asked["build"] == FOREIGN | {"start": 2}


def test_a_format_gets_them() -> None:
    backend: Any = types.SimpleNamespace(
        get_vocab_size=lambda: 12, token_to_id=dict(zip("abcd", FOREIGN.values(), strict=True)).get
    )
    tokenizer = tokenizers.Tokenizer(backend, dict(zip(FOREIGN, "abcd", strict=True)))
    specials = tokenizer.specials(((), (), ("c",)), "pad")
    assert (specials.end, specials.sentinels) == ((3,), (11, 10))
    assert specials.ids["start"] == specials.ids["pad"] == 2
    with pytest.raises(ValueError, match="'mask'.*sentinel_N, eos, pad"):
        specials.ids["mask"]


@pytest.mark.parametrize(("module", "options"), [(mlm, mlm.Options()), (capitals, None)])
def test_a_role_that_is_missing_is_named(module: Any, options: Any) -> None:
    ids = systems.special_ids(systems.load("keeper"))
    with pytest.raises(ValueError, match="'mask'.*pad, eos"):
        module.make(objectives.Setting(9, ids, 0.15), options)


def test_positions_of_rows_of_a_narrow_table() -> None:
    """A fine-tuning that trains some rows of the table keeps those of the special tokens."""
    from scalelab.finetuning import rows

    store = types.SimpleNamespace(arrays={"tokens": np.array([40, 50])})
    examples: Any = [types.SimpleNamespace(rows=store)]
    found = rows.find(examples, "table", 1000, 2**16, 10**9, named=[7, 9])
    assert found is not None and found.ids.tolist() == [7, 9, 40, 50]
    assert found.renumber_ids({"pad": 9, "eos": 7}) == {"pad": 1, "eos": 0}
