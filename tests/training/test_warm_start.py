"""A pre-training that begins with another run's parameters: where that is, and what it refuses."""

import functools
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import declared
import flax.linen as nn
import jax
import numpy as np
import pytest
from train_lab import Lab, Record, kill_at

from scalelab.interop import exporting, importing, maps
from scalelab.lab.show import card
from scalelab.training import beginning, pretrained

# No rate, no change: what is validated after the first steps is what it began with.
STILL = dict(optim__learning_rate=0.0, optim__weight_decay=0.0)
PAIRS = dict(objective="mlm+nsp", data__format="segment_pair")
MLM = dict(objective="mlm", data__format="doc_sentences")


@pytest.fixture(scope="module")
def config(lab: Lab) -> Callable[..., Any]:
    """config(run, steps, system, **fields): of one phase that begins with the run's parameters."""

    def make(run: Any = None, /, steps: int = 2, system: str = "bert", **fields: Any) -> Any:
        given = {"machine__init": run and str(run), "long__example_rate": 0.0} | fields
        return lab.config(f"system={system},steps={steps}", **given)

    return make


@pytest.fixture(scope="module")
def first(lab: Lab, config: Any, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A trained run: 30 steps at a high rate."""
    return lab.run(tmp_path_factory.mktemp("first") / "run", config(steps=30))


def loss(record: Record) -> float:
    assert record.result is not None
    return record.result["eval"]["32"]["loss"]


def parameters(state: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


def test_it_begins_at_the_loss_at_which_the_other_ended(lab, config, first, tmp_path) -> None:
    from_random = loss(lab.run(tmp_path / "random", config(**STILL)))
    record = lab.run(tmp_path / "begun", config(first.workdir, **STILL))
    assert loss(record) == pytest.approx(loss(first), rel=1e-5)
    assert from_random > loss(first) + 0.2
    assert {int(k) for k in record.states} == {1, 2}  # its clocks are its own
    assert record.result["tokens"] < first.result["tokens"]


def test_its_files_say_where_it_began(lab, config, first, tmp_path) -> None:
    record = lab.run(tmp_path / "run", config(first.workdir, tokenizer__vocab_size=280))
    digest = pretrained.tree_digest(pretrained.load(first.workdir).params)
    written = json.loads((tmp_path / "run/config.json").read_text())
    assert written["init"] == digest and written["machine"]["init"] == str(first.workdir)
    assert written["tokenizer"]["vocab_size"] == 300  # the other run's, not what was asked for
    assert record.result is not None
    assert record.result["init"] == str(first.workdir) and record.result["init_digest"] == digest
    ours, theirs = (
        folder / "tokenizer/tokenizer.json" for folder in (tmp_path / "run", first.workdir)
    )
    assert ours.read_bytes() == theirs.read_bytes()
    assert pretrained.load(tmp_path / "run").tokenizer.vocab_size == 300
    origin = f"| started from | {first.workdir}, parameters {digest} |"
    assert origin in card.write(tmp_path / "run")
    (tmp_path / "run/result.json").unlink()  # as on its way
    assert origin in card.write(tmp_path / "run")


@pytest.mark.slow
def test_continuing_needs_the_first_run_no_more(lab, config, tmp_path, capsys) -> None:
    """It goes on bit for bit, with the same command and without --init."""
    init = tmp_path / "init"
    lab.run(init, config(steps=1, **MLM))
    pairs = dict(steps=4, machine__checkpoint_every_steps=1, **PAIRS)  # a head is fresh
    whole = lab.run(tmp_path / "whole", config(init, **pairs))
    lab.run(tmp_path / "cut", config(init, **pairs), before=kill_at(2))
    shutil.rmtree(init)
    capsys.readouterr()
    lab.run(tmp_path / "cut", config(init, **pairs), before=kill_at(3))
    assert str(init) in (printed := capsys.readouterr().out) and "continuing from step" in printed
    resumed = lab.run(tmp_path / "cut", config(**pairs))
    assert min(resumed.states) > 1
    jax.tree.map(np.testing.assert_array_equal, resumed.states[4], whole.states[4])
    for name in ("init", "init_digest", "initialised"):
        assert resumed.result is not None and whole.result is not None
        assert resumed.result[name] == whole.result[name]
    assert len(resumed.result["initialised"]) == 4
    a, b = (json.loads((tmp_path / f"{n}/config.json").read_text()) for n in ("cut", "whole"))
    assert a == b


@pytest.mark.slow
def test_continuing_from_others_is_refused(lab, config, first, tmp_path, pretrained_runs) -> None:
    run = tmp_path / "run"
    begun = config(first.workdir, steps=4)
    lab.run(run, begun, before=kill_at(2))
    for given, message in (
        (config(pretrained_runs("bert"), steps=4), "--init=.* other parameters .*--init"),
        (config(tmp_path / "elsewhere", steps=4), "elsewhere.*--init"),
        (config(steps=4, init="01234567"), "config.init"),
        (config(run, steps=4), "is the --workdir itself"),
    ):
        with pytest.raises(ValueError, match=message):
            beginning.begin(given, run)
    moved = shutil.copytree(first.workdir, tmp_path / "moved")
    made, start, _ = beginning.begin(config(moved, steps=4), run)  # the same parameters
    assert start is not None and start.opened is not None and made.init == start.digest
    for step in (run / "checkpoints").glob("[0-9]*"):
        shutil.rmtree(step)
        step.mkdir()
    with pytest.raises(ValueError, match="checkpoints .* read"):  # not random
        lab.run(run, begun)


@pytest.mark.slow
def test_heads_that_one_of_both_lacks_are_named(lab, config, tmp_path, capsys) -> None:
    both = lab.run(tmp_path / "both", config(**PAIRS))
    capsys.readouterr()
    lab.run(tmp_path / "fewer", config(both.workdir, **MLM))
    assert "left out: pair_head/classifier/bias, " in capsys.readouterr().out
    still = dict(seed=5, **PAIRS, **STILL)
    record = lab.run(tmp_path / "more", config(tmp_path / "fewer", **still))
    assert "initialized afresh: pair_head/classifier/bias, " in capsys.readouterr().out
    assert record.result is not None and len(record.result["initialised"]) == 4
    fresh = lab.run(tmp_path / "fresh", config(**still))
    given = parameters(pretrained.load(tmp_path / "fewer"))
    for name, x in parameters(record.states[2]).items():
        expected = given[name] if name in given else parameters(fresh.states[2])[name]
        np.testing.assert_array_equal(x, expected, err_msg=name)


@pytest.mark.slow
def test_several_seeds_begin_with_the_same(lab, config, first, tmp_path) -> None:
    given = [config(first.workdir, seed=seed, **STILL) for seed in (0, 1)]
    runs = [lab.run(tmp_path / f"seed{one.seed}", one) for one in given]
    losses = [loss(run) for run in runs]
    assert losses == pytest.approx([loss(first)] * 2, rel=1e-5)  # masks do not depend on the seed
    params = [parameters(pretrained.load(run.workdir)) for run in runs]
    for name in params[0]:
        np.testing.assert_array_equal(params[0][name], params[1][name])


@pytest.mark.parametrize(("fields", "message"), [
    (dict(model__width=16), r"width .*8 .*16 .*\[8\] .*\[16\]"),
    (dict(model__max_len=32), r"max_len .*64 .*32 .*embed/positions/table: \[64, 8\]"),
    (dict(model__num_heads=1), "num_heads .*2 .*1 "),
    (dict(model__num_layers=2), "num_layers .*1 .*2 "),
    (dict(model__activation="relu"), "activation is None there, relu here"),
    (dict(model__norm_epsilon=1e-5), "norm_epsilon is None there, 1e-05 here"),
    (dict(machine__init="nowhere"), "nowhere"),
    (dict(init="01234567"), "config.init .*digest"),
    (dict(init="01234567", machine__init=None), "--init=RUN"),
    (dict(system="gpt2", model__width=16, model__num_layers=2),
     "none of its .*model of gpt2 .*there"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(config, pretrained_runs, fields, message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        beginning.begin(config(pretrained_runs("bert"), **fields), pathlib.Path("new"))


def test_parameters_are_matched_by_name_and_shape() -> None:
    """Two towers from one model, a student from every other layer, shared layers from the first."""

    def box(*shape: int, names: str = "") -> nn.LogicallyPartitioned:
        axes = (names or "width",) * len(shape)
        return nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, np.float32), axes)

    given = {"embed/table": (9, 4), "stack/layer/kernel": (6, 4, 4), "head/out/kernel": (4, 2)}
    wanted = {
        "question/embed/table": box(9, 4),
        "passage/embed/table": box(9, 4),
        "stack/layer/kernel": box(3, 4, 4, names="layers"),
        "shared/stack/layer/kernel": box(1, 4, 4, names="groups"),
        "deeper/stack/layer/kernel": box(8, 4, 4, names="layers"),
        "rows/stack/layer/kernel": box(3, 4, 4),
        "head/out/kernel": box(4, 3),
        "own/kernel": box(4, 4),
    }
    assert beginning.match(wanted, given) == {
        "question/embed/table": ("embed/table", ()),
        "passage/embed/table": ("embed/table", ()),
        "stack/layer/kernel": ("stack/layer/kernel", (0, 2, 4)),
        "shared/stack/layer/kernel": ("stack/layer/kernel", (0,)),
    }


def test_a_run_begins_with_what_fits_of_another(lab, config, first, tmp_path, capsys) -> None:
    given = dict(system="roberta", optim__learning_rate=0.0, optim__weight_decay=0.0)
    record = lab.run(tmp_path / "run", config(first.workdir, **given))
    printed = capsys.readouterr().out
    assert "taken: " not in printed  # all by their own names
    assert "left out: embed/segments/table, pair_head/" in printed
    theirs = parameters(pretrained.load(first.workdir))
    ours = parameters(record.states[2])
    assert ours.keys() < theirs.keys() and "['embed']['tokens']['table']" in ours
    for name, x in ours.items():
        np.testing.assert_array_equal(x, theirs[name], err_msg=name)


@pytest.mark.slow
def test_the_second_stage_of_palm_begins_with_the_weights_of_the_first(
    lab, config, tmp_path, pretrained_runs
) -> None:
    """All weights of a RoBERTa but those of its head are the encoder's."""
    first = pretrained_runs("roberta")
    record = lab.run(tmp_path / "run", config(first, system="palm", **STILL))
    ours, theirs = parameters(record.states[2]), parameters(pretrained.load(first))
    theirs = {name: x for name, x in theirs.items() if not name.startswith("['token_head']")}
    assert {n.removeprefix("['encoder']") for n in ours if "['encoder']" in n} == theirs.keys()
    for name, x in theirs.items():
        np.testing.assert_array_equal(ours[f"['encoder']{name}"], x, err_msg=name)


@pytest.mark.slow
def test_an_imported_run_goes_on(lab, config, first, tmp_path) -> None:
    """There and back again it is the same run: parameters, tokenizer, and so the loss."""
    exporting.run(first.workdir, tmp_path / "exported")
    importing.run(str(tmp_path / "exported"), tmp_path / "imported")
    begun = lab.run(tmp_path / "begun", config(tmp_path / "imported", **STILL))
    assert loss(begun) == pytest.approx(loss(first), rel=1e-5)


PEERS = [
    name for name in (family.system for family in maps.load_all())
    if isinstance(declared.get(name).peer, declared.Peer)
]  # fmt: skip


@pytest.mark.parity
@pytest.mark.parametrize("system", PEERS)
def test_a_checkpoint_of_transformers_goes_on(lab, config, tmp_path, system: str) -> None:
    """It begins with its very parameters and its tokenizer, and learns."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import peers
    import real_text
    import transformers

    model = peers.make(system, (2, 8, 1), 64, vocab_size=real_text.VOCAB + 5)  # padded rows
    model.float().save_pretrained(tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(real_text.tokenizer_dir(system))
    tokenizer.save_pretrained(tmp_path / "theirs")
    importing.run(str(tmp_path / "theirs"), tmp_path / "imported")
    opened = pretrained.load(tmp_path / "imported")
    options = {x: getattr(opened.config, x) for x in ("objective", "system_options")}
    given = functools.partial(config, tmp_path / "imported", system=system, **options)
    still = lab.run(tmp_path / "still", given(**STILL))
    expected = parameters(opened)
    for name, x in parameters(still.states[2]).items():
        np.testing.assert_array_equal(x, expected[name], err_msg=name)
    moved = lab.run(tmp_path / "moved", given(steps=20))
    assert loss(moved) < loss(still)
