"""The two phases: the protocol's arithmetic, the share of examples, and what is cached."""

import numpy as np
import pytest
import tiny

from scalelab import formats
from scalelab.config import pretraining as config_lib
from scalelab.data import phases
from scalelab.formats import Documents, Specials
from scalelab.helpers.names import module_names

IDS = {"mask": 599, "eos": 598} | {f"sentinel_{i}": 600 + i for i in range(32)}
SPECIALS = Specials((1,), (2,), (3,), ids=IDS)


@pytest.fixture
def config(tmp_path):
    """config(**fields): small lengths and batches, and a cache of its own."""
    small = dict(
        short__max_len=32, short__batch_size=8, long__max_len=128, long__batch_size=2,
        machine__cache_dir=str(tmp_path / "cache"), data__format="doc_sentences",
    )  # fmt: skip
    return lambda **fields: config_lib.resolve(tiny.values(**(small | fields)))


@pytest.fixture(scope="module")
def documents():
    return {"train": make_documents(400), "valid": make_documents(30, seed=1)}


def make_documents(count, seed=0, max_sentences=40):
    rng = np.random.default_rng(seed)
    per_document = rng.integers(1, max_sentences, count)
    lengths = rng.integers(1, 30, per_document.sum())
    return Documents(
        tokens=rng.integers(10, 500, lengths.sum()).astype(np.uint16),
        sentence_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        sentence_bytes=(4 * lengths).astype(np.int32),
        document_starts=np.concatenate([[0], np.cumsum(per_document)]).astype(np.int64),
    )


def test_share_of_the_tokens_by_hand():
    # Twelve examples at the short length against three at the long one: r = 1/4. A rate of 1/2
    # wants as many long as short ones: x / 4 = 1 - x, x = 4/5.
    documents = make_documents(3000)
    num_tokens = np.diff(documents.sentence_starts[documents.document_starts])

    def build(documents, *, max_len, seed, document_ids):
        return [[0] * {8: 12, 32: 3}[max_len]]

    short, long = phases.split_documents(documents, build, (8, 32), 0.5, seed=4)
    assert sorted([*short, *long]) == list(range(3000))
    assert num_tokens[long].sum() / num_tokens.sum() == pytest.approx(0.8, abs=1e-3)


def test_long_documents_are_a_seeded_choice_of_the_share_asked_for():
    documents = make_documents(3000)
    num_tokens = np.diff(documents.sentence_starts[documents.document_starts])
    previous = np.zeros(3000, bool)
    for share in (0.0, 0.1, 0.35, 1.0):
        chosen = phases.choose_documents(documents, share, seed=4)
        assert num_tokens[chosen].sum() / num_tokens.sum() == pytest.approx(share, abs=1e-3)
        assert (chosen | ~previous).all()  # a larger share only adds documents
        previous = chosen
    a, b = (phases.choose_documents(documents, 0.3, seed=s) for s in (0, 1))
    assert 0.05 < (a & b).mean() < 0.13  # 0.3 * 0.3 where the choices are independent
    assert abs(a[:1500].sum() / a.sum() - 0.5) < 0.05


@pytest.mark.parametrize("name", module_names("formats"))
@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_the_rate_of_long_examples_comes_out(config, name, rate):
    documents = {"train": make_documents(3000), "valid": make_documents(30, seed=1)}
    given = config(data__format=name, long__example_rate=rate)
    short, long = phases.PhaseMaker(given, documents, SPECIALS, "key").make()
    assert (short.max_len, short.batch_size, long.max_len, long.batch_size) == (32, 8, 128, 2)
    found = len(long.train) / (len(long.train) + len(short.train))
    assert found == pytest.approx(rate, rel=0.05)


def num_text(store):
    return store.arrays["num_text_tokens"].sum() + store.meta["dropped_tokens"]


@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_phases_share_the_documents_and_validation_has_all_of_them(config, documents, rate):
    made = phases.PhaseMaker(config(long__example_rate=rate), documents, SPECIALS, "key").make()
    assert len(made) == 1 + (rate > 0)
    assert sum(num_text(p.train) for p in made) == len(documents["train"].tokens)
    for phase in made:
        assert num_text(phase.valid) == len(documents["valid"].tokens)
        assert phase.lengths(phase.valid)["tokens"].max() == phase.max_len
        size, whole = phase.batch_size, len(phase.valid)
        asked = (1, size, size + 1, None, 10**6)
        assert [phase.num_validated(num) for num in asked] == [size, size, 2 * size, whole, whole]


def test_a_second_phase_of_no_epochs_leaves_the_first_as_it_is(config, documents):
    """Short sequences only (protocol, 7.5.5): the first phase's examples, not all documents."""
    short, _ = phases.PhaseMaker(config(), documents, SPECIALS, "key").make()
    (only,) = phases.PhaseMaker(config(long__epoch_rate=0.0), documents, SPECIALS, "key").make()
    assert only.train.fingerprint() == short.train.fingerprint()
    assert (only.max_len, only.steps_per_epoch) == (short.max_len, short.steps_per_epoch)


def test_a_store_is_made_once_and_again_for_whatever_changes_it(config, documents, monkeypatch):
    form, calls = formats.load("segment_pair"), []
    build = form.build
    monkeypatch.setattr(form, "build", lambda *a, **k: calls.append(1) or build(*a, **k))

    def made(specials=SPECIALS, key="key", **fields):
        calls.clear()
        given = config(**({"data__format": "segment_pair"} | fields))
        phases.PhaseMaker(given, documents, specials, key).make()
        return len(calls)

    assert made() == 6  # two counts for the share, and two splits of two phases
    assert made() == 0
    assert made(machine__prefetch=9) == 0
    assert made(seed=5) == 4  # validation stays the same
    assert made(key="other") == 6
    assert made(specials=Specials((1,), (2,), (4,))) == 6
    assert made(format_options={"short_rate": 0.2}) == 6
    assert made(short__max_len=40) == 5  # not validation at 128
    assert made(short__batch_size=4) == 0
    monkeypatch.setattr(form, "VERSION", form.VERSION + 1)
    assert made() == 6


def test_too_little_text_is_refused(config):
    few = {"train": make_documents(3, max_sentences=3), "valid": make_documents(3, seed=1)}
    no_validation = {"train": make_documents(300), "valid": make_documents(0)}
    for documents, message in (
        (few, r" \d .*length 32.*batch of 8"), (no_validation, "validation .*valid_rate"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            phases.PhaseMaker(config(), documents, SPECIALS, message).make()
