"""`scalelab systems`: everything that a config or a study may name, from the modules themselves."""

import json

import in_process
import pytest
import scratch

from scalelab import catalog
from scalelab.eval.names import EVALUATIONS
from scalelab.helpers.names import module_names
from scalelab.tasks.task import task_names


def test_everything_is_listed_once() -> None:
    found = list(catalog.entries())
    named = [name for package in catalog.PACKAGES for name in module_names(package)]
    assert [entry.name for entry in found] == [*named, *task_names(), *EVALUATIONS]
    assert all(entry.description for entry in found)


def test_a_new_system_is_listed_with_its_options(monkeypatch, capsys) -> None:
    scratch.add(monkeypatch, "systems", "fake", __doc__="FAKE: A paper.\n\nMore.")
    in_process.run(catalog, ["fake", "--json"])
    (made,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (made["kind"], made["description"]) == ("system", "FAKE: A paper.")
    assert made["parity"] == []  # no class of transformers is like it
    in_process.run(catalog, ["electra*", "--json"])
    (made,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert made["options"]["generator_rate"] == 0.25 and "no generator" in str(made["meanings"])
    assert "ElectraForPreTraining" in made["parity"]
    in_process.run(catalog, ["bert_ltr"])  # the model is tested without a peer
    assert "parity" not in capsys.readouterr().out


def test_an_unknown_name(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        in_process.run(catalog, ["elctra*"])
    assert ended.value.code == 2 and "'electra'" in capsys.readouterr().err
