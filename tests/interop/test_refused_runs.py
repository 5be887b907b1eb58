"""What cannot be exported, and names that lead to pickles: one message, exit code 2."""

import json
import pathlib
import shutil
from collections.abc import Callable

import fine_tuned
import pytest
from damage import Damage, config, without, written

from scalelab.interop import exporting, hf, importing

pytestmark = pytest.mark.slow

Runs = Callable[[str], pathlib.Path]


@pytest.fixture(scope="module")
def tuned(
    pretrained_runs: Runs, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pathlib.Path, pathlib.Path]:
    """A sound fine-tuning, and one of other sizes; do not write into them."""
    folder = tmp_path_factory.mktemp("tuned")
    fine_tuned.make(pretrained_runs("bert"), folder / "good", "double")
    fine_tuned.make(pretrained_runs("bert"), folder / "other", "double", 2)
    return folder / "good", folder / "other"


def lacking(*names: str) -> Damage:
    """Removes fields of config.json."""

    def damage(folder: pathlib.Path) -> None:
        values = json.loads((folder / "config.json").read_text())
        kept = {name: x for name, x in values.items() if name not in names}
        (folder / "config.json").write_text(json.dumps(kept))

    return damage


DAMAGES = {
    "no tokenizer": (
        lambda f: shutil.rmtree(f / "tokenizer"),
        "the run has no tokenizer: .*tokenizer.json is missing",
    ),
    "half a tokenizer": (
        without("tokenizer/special_tokens_map.json"),
        "no tokenizer: .*special_tokens_map.json is missing",
    ),
    "a damaged tokenizer": (written("tokenizer/tokenizer.json", "{"), "tokenizer is damaged"),
    "a map of garbage": (written("tokenizer/special_tokens_map.json", "[]"), "is damaged"),
    "no net": (lacking("net"), "not what a fine-tuning .* leaves: net.num_heads = None, .*train"),
    "nothing but a task": (written("config.json", '{"task": "x"}'), "leaves: .*head.kind = None"),
    "a list": (written("config.json", "[1]"), "no run in"),
    "a deep config": (written("config.json", "[" * 99_999), "config.json is damaged"),
    "labels of no sort": (config(labels=3), "not what a fine-tuning .* leaves: labels = 3"),
    "other labels": (
        config(labels=["a", "b"]),
        r"is not of the classifier .*head/out/bias: expected \(2,\), found \(3,\)",
    ),
    "another net": (
        config(net=dict(num_heads=2, width=16, num_layers=1, ffn_width=32, max_len=64,
            dropout_rate=0.1)),
        r"is not of the classifier .*: expected \(16,\), found \(8,\)",
    ),
    "a family without a map": (
        config(system="electra"),
        "no map to the classes of transformers for 'electra'; there are maps for bert, gpt",
    ),
    "two scores of a regression": (
        config(regression=True, labels=None),
        r"is not of the classifier .*head/out/bias: expected \(1,\), found \(3,\)",
    ),
    "a config that is a folder": (
        lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()),
        "config.json is a folder; expected a file",
    ),
    "no checkpoints": (lambda f: shutil.rmtree(f / "checkpoints"), "checkpoints is missing"),
    "an empty checkpoint": (
        lambda f: [shutil.rmtree(p) for p in (f / "checkpoints").iterdir() if p.is_dir()],
        "keeps no parameters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_fine_tuning(tuned, tmp_path, name: str, capsys) -> None:
    damage, message = DAMAGES[name]
    shutil.copytree(tuned[0], tmp_path / "run")
    damage(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        exporting.run(tmp_path / "run", tmp_path / "deep/out")
    with pytest.raises(SystemExit) as end:
        hf.main(["export", str(tmp_path / "run"), f"--to={tmp_path / 'deep/out'}"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith("error: ") and "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["run"]  # nothing is left behind


def test_the_folder_above_the_seeds(tuned, tmp_path) -> None:
    with pytest.raises(ValueError, match="good, other.: export one of them, such as .*good"):
        exporting.run(tuned[0].parent, tmp_path / "out")


def test_a_dangling_link_is_no_target(tuned, tmp_path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="--to=.* is a link to"):
        exporting.run(tuned[0], tmp_path / "link")
    with pytest.raises(ValueError, match="--workdir=.* is a link to"):
        importing.run(str(tuned[0]), tmp_path / "link")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_a_pickle_as_source(tmp_path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(ValueError, match=f"{name}: a pickle, and loading one can run .*NEW"):
        importing.run(str(tmp_path / name), tmp_path / "run")


def test_a_pickle_on_the_hub(tuned, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not even fetched; who lists the files is asked what they are."""
    import huggingface_hub

    exporting.run(tuned[0], tmp_path / "out")
    without("model.safetensors")(tmp_path / "out")
    fetched = lambda *_, **__: str(tmp_path / "out")  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    names = ["config.json", "pytorch_model.bin", "vocab.txt"]
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda name: names)
    with pytest.raises(ValueError, match=r"^some/one .*pytorch_model.bin: a pickle.*'some/one'"):
        importing.run("some/one", tmp_path / "run")

    def unreachable(name: str) -> list[str]:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", unreachable)
    with pytest.raises(ValueError, match="has no model.safetensors"):
        importing.run("some/one", tmp_path / "run")
