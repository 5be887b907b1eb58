"""load_data from text to batches, and what the inspection of it prints."""

import os
import pathlib
import re

import declared
import numpy as np
import pytest
import tiny

from scalelab import formats, systems
from scalelab.config import pretraining as config_lib
from scalelab.data import inspect
from scalelab.data.batches import Batches, evaluation_batches
from scalelab.data.loading import load_data, unigram_entropy
from scalelab.data.phases import PhaseData
from scalelab.data.store import ExampleStore

DATA = pathlib.Path(os.environ.get("SCALELAB_DATA", tiny.ROOT.parent / "shared" / "data"))


def configured(system, corpus, cache_dir, **fields):
    small = tiny.small(cache_dir) | dict(
        model__max_len=128, long__max_len=128, long__batch_size=2, long__example_rate=0.1
    )
    arguments = f"system={system},corpus=wikitext:{corpus}"
    return config_lib.resolve(tiny.values(arguments, **(small | fields)))


@pytest.mark.parametrize("system", declared.marked(tiny.SYSTEMS))
def test_from_text_to_batches(system, wikitext, cache_dir):
    config = configured(system, wikitext, cache_dir)
    module = systems.load(system)
    data = load_data(config, module, progress=False)
    declared_arrays = formats.arrays_of(config.data.format, config.format_options, stored=True)
    arrays = {array.name for array in declared_arrays}
    arrays |= {formats.lengths_name(a.name) for a in declared_arrays if a.kind == "ragged"}
    assert [phase.max_len for phase in data.phases] == [32, 128]
    ids = {text: place for place, (_, text) in enumerate(module.SPECIAL_TOKENS)}
    frame = module.FRAME
    # The texts get it with each epoch; or the source has it.
    if hasattr(formats.load(config.data.format), "STORED") or "source" in arrays:
        frame = (), (), ()
    begin, _, end = ([ids[text] for text in part] for part in frame)
    text = (pathlib.Path(wikitext) / "wiki.train.raw").read_text()
    for phase in data.phases:
        batches = Batches(phase.train, phase.batch_size, phase.max_len, seed=0)
        batch = batches(3)
        assert batch.keys() == arrays | {"examples", "num_tokens"}
        for row, length in zip(batch["tokens"], batch["lengths"], strict=True):
            assert row[: len(begin)].tolist() == begin
            assert row[length - len(end) : length].tolist() == end
        # Byte-level pieces and no special tokens: a row is a piece of the text.
        if config.tokenizer.kind == "bytebpe" and not any(module.FRAME):
            decoded = data.tokenizer.decode(batch["tokens"][0, : batch["lengths"][0]])
            assert decoded.strip() in " ".join(text.split())
    found = len(data.phases[1].train) / sum(len(phase.train) for phase in data.phases)
    assert found == pytest.approx(0.1, abs=0.03)


def test_unigram_entropy_by_hand():
    assert unigram_entropy(np.array([3, 3, 7, 9])) == pytest.approx(1.5 * np.log(2))


def counted(labels, starts, num_examples, num_tokens, num_text_tokens, dropped_tokens):
    arrays = {"label": np.repeat([0, 1], labels).astype(np.int8), "place": np.array([2, 3])}
    meta = {"flat": ["num_bytes", *arrays], "ragged": {"tokens": 9, "targets": 9}}
    ends = np.append(np.zeros(num_examples, int), num_tokens)
    arrays |= {"targets_starts": np.array(starts), "tokens_starts": ends}
    arrays["num_text_tokens"] = np.array([num_text_tokens])
    return ExampleStore(arrays, meta | {"dropped_tokens": dropped_tokens})


def test_table_by_hand():
    train = counted([498, 502], [0, 1, 4], 1000, 110_250, 90_000, 10_000)
    valid = counted([3, 1], [0, 1, 2], 3, 12, 9, 0)
    phases = (PhaseData(128, 64, train, valid),)
    lines = [re.split(r"  +", line.strip()) for line in inspect.table(phases).split("\n")]
    assert lines[0][5:9] == ["padding", "label = 1", "mean place", "mean length of targets"]
    more = ["50.20%", "2.50", "2.00", "64", "15"]
    assert lines[1] == ["128, train", "1,000", "110,250", "110.25", "10.0%", "13.9%", *more]
    assert lines[2] == ["128, valid", "3", "12", "4.00", "0.0%", "25.00%", "2.50", "1.00", "64"]


def test_histogram_by_hand() -> None:
    lines = inspect.histogram(np.array([0, 1, 16, 17, 32, 33, 80])).split("\n")
    assert [line.split()[:4] for line in lines] == [
        ["1", "to", "16", "42.9%"], ["17", "to", "32", "28.6%"], ["33", "to", "48", "14.3%"],
        ["49", "to", "64", "0.0%"], ["65", "to", "80", "14.3%"],
    ]  # fmt: skip


def test_lengths_are_those_that_the_net_reads(wikitext, cache_dir) -> None:
    """Span corruption: sources end below the stored text, targets are much shorter."""
    config = configured("t5", wikitext, cache_dir, long__example_rate=0.0)
    data = load_data(config, systems.load("t5"), progress=False)
    out = inspect.report(config, data, 0)
    phase, titles = (
        data.phases[0],
        re.findall(r"(\w+): tokens in a training .* 32, [\d,]+ examp", out),
    )
    assert sorted(titles) == ["source", "tokens"]
    batch = next(evaluation_batches(phase.train, 8, 16, phase.corrupt))
    found = phase.lengths(phase.train)
    assert found["tokens"][:8].tolist() == batch["lengths"].tolist()
    assert found["source"][:8].tolist() == batch["source_lengths"].tolist()
    bars = out[out.index("tokens: tokens in") :].split("\n\n")[0]
    assert inspect.histogram(found["tokens"]) in bars


def test_program(wikitext, cache_dir, monkeypatch, capsys):
    config = configured("bert", wikitext, cache_dir)
    monkeypatch.setattr(inspect.cli, "read_config", lambda given: config)
    inspect.main(inspect.parser().parse_args(["--examples=3", "--verify"]))
    verified, out = capsys.readouterr().out.split("\n", 1)
    assert verified.endswith(", 0 damaged")
    assert out.startswith("bert: segment_pair, wordpiece 300\n")
    assert out.count("    [CLS]") == out.count(", random_second ") == 6
    train = [line.split() for line in out.split("\n") if re.match(r" *\d+, train .* \d+$", line)]
    per_epoch = sum(int(row[-1].replace(",", "")) for row in train)
    assert re.search(rf"\b{per_epoch} steps.* {6 * per_epoch:,} in 6", out)


@pytest.mark.slow
@pytest.mark.realdata
def test_ratio_of_table_7_1_on_wikipedia(cache_dir):
    """All tokens of BERT-style against RoBERTa-style training: 154.2 M : 97.7 M in Table 7.1."""
    corpus = DATA / "wikitext-2"
    if not corpus.is_dir():
        pytest.skip(f"no corpus in {corpus}")
    num_tokens = {}
    for system in ("bert", "roberta"):
        arguments = f"system={system},corpus=wikitext:{corpus}"
        config = config_lib.resolve(tiny.values(arguments, machine__cache_dir=str(cache_dir)))
        data = load_data(config, systems.load(system), progress=False)
        num_tokens[system] = sum(phase.train.arrays["tokens_starts"][-1] for phase in data.phases)
        shares = [len(phase.train) for phase in data.phases]
        assert shares[1] / sum(shares) == pytest.approx(0.1, abs=0.005)
        for phase in data.phases:
            if system == "bert":
                share = phase.train.arrays["random_second"].mean()
                assert share == pytest.approx(0.5, abs=0.01)
    table = (110_888_186 + 43_274_856) / (70_025_709 + 27_692_351)
    assert num_tokens["bert"] / num_tokens["roberta"] == pytest.approx(table, rel=0.06)
