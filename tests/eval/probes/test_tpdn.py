"""TPDN: planted tensor products, tree positions by hand, and the program."""

import numpy as np
import pandas as pd
import pytest
import test_structural
from test_structural import treebank as treebank

from scalelab.eval.probes import tensor_products, tpdn
from scalelab.eval.probes.tensor_products import SCHEMES, Split

NUM_WORDS, WIDTH = 8, 6


def test_tree_positions_by_hand() -> None:
    # the(2) dog(3) saw(0) a(6) big(6) cat(3)
    expected = [(-1, -1), (-1,), (), (-2, 1), (-1, 1), (1,)]
    assert tensor_products.tree_positions([2, 3, 0, 6, 6, 3]) == expected


def plant(scheme: str, rng: np.random.Generator) -> list[Split]:
    """Sentences whose vectors are means of word (x) role, mapped at random; a layer of noise."""
    roles: dict[object, np.ndarray] = {}
    fillers, mix = rng.normal(size=(NUM_WORDS, 3)), rng.normal(size=(3, 3, WIDTH))
    found = []
    for num in (1200, 150, 150):
        heads = [test_structural.random_sentence(rng, int(n)).heads
                 for n in rng.integers(2, 6, num)]  # fmt: skip
        words = [rng.integers(NUM_WORDS, size=len(own)).tolist() for own in heads]
        vectors = []
        for own, named in zip(words, map(SCHEMES[scheme], heads), strict=True):
            bound = [
                np.einsum("f,r,frd->d", fillers[k], roles.setdefault(role, rng.normal(size=3)), mix)
                for k, role in zip(own, named, strict=True)
            ]
            vectors.append(np.mean(bound, axis=0))
        noise = rng.normal(size=(num, WIDTH))
        found.append(Split(heads, words, np.stack([noise, vectors]).astype(np.float32)))
    return tensor_products.standardize(found)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("right to left", "bag of words")]


@pytest.mark.parametrize("planted", ["left to right", *SLOW, "tree"])
def test_the_planted_scheme_alone_has_no_error(planted: str, monkeypatch) -> None:
    monkeypatch.setattr(tensor_products, "LEARNING_RATE", 2e-2)
    splits = plant(planted, np.random.default_rng(0))
    found = {name: tensor_products.fit(splits, name, 6, 40).mean(axis=1) for name in SCHEMES}
    noise, errors = ({name: own[layer] for name, own in found.items()} for layer in (0, 1))
    assert errors[planted] < 0.03 and min(noise.values()) > 0.9
    # Both ends together name each place from the left or the right; a bag of words has no role.
    wider = set() if planted == "tree" else {"bidirectional"}
    others = set() if planted == "bag of words" else SCHEMES.keys() - {planted} - wider
    assert min(errors.values()) > 0.9 * errors[planted]
    assert all(errors[name] > 0.2 for name in others), errors


def test_the_program(pretrained_runs, treebank, tmp_path, stop_at, start, refused) -> None:
    """Stopped after two schemes, it fits only the other three, and ends with the same bytes."""
    given = f"--run={pretrained_runs('bert')}", f"--data={treebank}", "--epochs=2", "--size=3"
    code, out, errors = start(tpdn, *given, f"--workdir={tmp_path}/whole")
    assert code == 0, errors
    table = pd.read_csv(tmp_path / "whole/seed0/groups.tsv", sep="\t")
    assert list(table) == ["layer", *SCHEMES, "best"] and len(table) == 2
    calls = stop_at(tensor_products, "fit", 3)
    again = *given, f"--workdir={tmp_path}/cut"
    assert start(tpdn, *again)[0] != 0
    assert start(tpdn, *again)[0] == 0
    assert [scheme for _, scheme, *_ in calls] == [*list(SCHEMES)[:3], *list(SCHEMES)[2:]]
    for name in ("predictions.tsv", "groups.tsv"):
        whole, cut = (tmp_path / kind / "seed0" / name for kind in ("whole", "cut"))
        assert whole.read_bytes() == cut.read_bytes()
    assert "--size" in refused(tpdn, *given, "--size=0", f"--workdir={tmp_path}/x")
