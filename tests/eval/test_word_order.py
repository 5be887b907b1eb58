"""What shuffling moves and what it leaves; and that nothing else differs between the losses."""

import in_process
import law_folders
import numpy as np

from scalelab.eval import word_order


def test_shuffling_keeps_special_tokens_and_the_words_of_each_stretch() -> None:
    rng = np.random.default_rng(0)
    tokens = np.tile(np.arange(40), (3, 1))
    special = np.zeros_like(tokens, bool)
    special[:, [0, 20, 36, 37, 38, 39]] = True
    special[2, 1:] = True  # nothing is left to shuffle
    found = word_order.shuffled(tokens, special, rng)
    assert (found[special] == tokens[special]).all()
    for row in found[:2]:
        assert sorted(row[1:20]) == list(range(1, 20)) and sorted(row[21:36]) == list(range(21, 36))
        assert (row[1:20] != np.arange(1, 20)).sum() > 10
    assert (found[0] != found[1]).any() and (tokens[0] == np.arange(40)).all()


def test_nothing_but_the_order_differs(pretrained_runs, monkeypatch) -> None:
    run = pretrained_runs("bert")
    plain, mixed = word_order.losses(run, 8, seed=0)["mlm"]
    assert plain != mixed
    monkeypatch.setattr(word_order, "shuffled", lambda tokens, special, rng: tokens)
    assert word_order.losses(run, 8, seed=0)["mlm"] == (plain, plain)
    assert word_order.losses(run, 8, seed=1)["mlm"] != (plain, plain)  # other masks


def test_the_program(pretrained_runs, capsys, tmp_path) -> None:
    in_process.run(word_order, [f"--run={pretrained_runs('bert')}", "--num_examples=8"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["mlm", "nsp"]
    for count, name in ((8, str(tmp_path)), (0, "at least 1")):
        given = f"--run={tmp_path}", f"--num_examples={count}"
        assert name in law_folders.fails(capsys, word_order, *given)
