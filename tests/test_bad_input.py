"""Users' mistakes: one clear message, exit code 2, nothing left that a later run trusts."""

import json
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import in_process
import numpy as np
import pytest
import tiny

from scalelab import systems
from scalelab import train as train_lib
from scalelab.config import pretraining as config_lib
from scalelab.data import cache, loading
from scalelab.data.loading import load_data

SETTINGS = {
    "tokenizer.vocab_size": 300, "model.max_len": 64, "short.max_len": 32, "short.batch_size": 8,
    "long.max_len": 64, "long.batch_size": 4, "machine.loader": "numpy", "machine.num_workers": 1,
    "machine.compile_cache_dir": "",
}  # fmt: skip

Train = Callable[..., str]


def arguments(
    wikitext: pathlib.Path | str, cache_dir: pathlib.Path, workdir: pathlib.Path, extra: tuple
) -> list[str]:
    """The command line; of two values for one field the last holds."""
    begin = f"--config={tiny.ROOT}/configs/pretrain.py:"
    given = [argument for argument in extra if not argument.startswith("--")]
    settings = SETTINGS | {"machine.cache_dir": cache_dir}
    return [
        begin + ",".join(given or ["system=bert", "shape=2x8x1", "steps=20"])
        + f",corpus=wikitext:{wikitext}" * (not any("corpus=" in g for g in given)),
        f"--workdir={workdir}",
        *(f"--config.{k}={v}" for k, v in settings.items() if v != ""),
        *(argument for argument in extra if argument.startswith("--")),
    ]  # fmt: skip


@pytest.fixture
def refused(
    wikitext: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path, monkeypatch, capsys
) -> Train:
    """Runs the program in this process, checks how it ends, and returns its message."""

    def run(*extra: str, workdir: pathlib.Path = tmp_path / "run", whole: bool = True) -> str:
        argv = arguments(wikitext, cache_dir, workdir, extra) if whole else list(extra)
        assert in_process.code(train_lib, argv) == 2
        errors = capsys.readouterr().err
        assert "Traceback" not in errors
        found = re.findall(r"^(?:error: |interrupted; ).*", errors, re.MULTILINE | re.DOTALL)
        assert len(found) == 1, errors
        left = {path.name for path in workdir.iterdir()} if workdir.is_dir() else set()
        assert not left & {"result.json", "checkpoints"} or extra == (), left
        return found[0]

    return run


# --- Arguments and fields -------------------------------------------------------------------------


@pytest.mark.parametrize(("argument", "message"), [
    ("--config.nett.width=64", "'nett.width'.*'model.width'"),
    ("--config.machine=1", "machine is a group"),
    ("--config.objective_options=1", "objective_options is a group"),
    ("--config.model.max_len=48", "long.max_len = 64 .*max_len = 48"),
    ("--wrkdir=x", "wrkdir.*workdir"),
    ("system=brt,steps=20", "'brt'.*'bert'"),
    ("system=bert,shape=3x8x1", "3 heads .* 8"),
    ("--config.objective=mlm+capitls+continual", "'capitls'.*'capitals'"),
])  # fmt: skip
def test_arguments(argument: str, message: str, refused: Train, tmp_path: pathlib.Path) -> None:
    assert re.search(message, refused(argument))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("argv", "message"), [
    (["--workdir=x"], "--config is missing"),
    (["--config=configs/pretrain.py"], "--workdir is missing"),
    (["--config=configs/nothing.py", "--workdir=x"], "nothing.py"),
    (["--config=configs/pretrain.py", "stray"], "'stray'"),
    (["--config=configs/finetune.py", "--workdir=x"], "fine-tuning"),
    (["--config=configs/studies/formats.py:scale=tiny", "--workdir=x"], "study"),
])  # fmt: skip
def test_flags(argv: list[str], message: str, refused: Train, monkeypatch) -> None:
    monkeypatch.chdir(tiny.ROOT)
    assert re.search(message, refused(*argv, whole=False))


@pytest.mark.parametrize(("argument", "message"), [
    ("--config.data.format=segment_pairs", "'segment_pairs'.*'segment_pair'"),
    ("--config.data.corpus=wikitxt:x", "'wikitxt'.*'wikitext'"),
    ("--config.data.corpus=hf:/no/such/folder", "hf:/no/such/folder"),
    ("--config.tokenizer.kind=wordpeice", "'wordpeice'.*'wordpiece'"),
    ("--config.optim.schedule=liner", "'liner'.*'linear'"),
    ("--config.machine.remat=some", "remat.*'some'"),
    ("--config.data.format=doc_sentences", "'nsp'.*segment_pair"),
    ("--config.objective=clm", "'clm'.*'left'.*'both'"),
    ("--config.format_options.short_rate=2", "short_rate = 2"),
    ("--config.machine.tensor_parallel=3", "devices"),
    ("--config.optim.warmup_steps=50", "warmup_steps = 50"),
    ("--config.tokenizer.vocab_size=9000", "vocab_size"),
])  # fmt: skip
def test_values_that_only_the_run_can_judge(
    argument: str, message: str, refused: Train, tmp_path: pathlib.Path
) -> None:
    assert re.search(message, refused(argument))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("system", "argument", "message"), [
    ("glm", "format_options.mean_span=100", "mean_span = 100: .* max_len = 32 .* or less"),
    ("xlnet", "system_options.memory_len=70000", "memory_len = 70000: .* set it to 62767 or less"),
    ("transformer_xl", "machine.num_microbatches=2", "num_microbatches = 2: .*memory"),
    ("lstm", "machine.num_microbatches=2", "num_microbatches = 2: .*state"),
    ("transformer_xl", "long.example_rate=0.1", "transformer_xl .*memory.*example_rate=0"),
    ("bert", "objective=plm", "'plm' .*'query'"),
])  # fmt: skip
def test_what_a_system_cannot_do(
    system: str, argument: str, message: str, refused: Train, tmp_path: pathlib.Path
) -> None:
    assert re.search(
        message, refused(f"system={system},shape=2x8x1,steps=20", f"--config.{argument}")
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("flag", "there"), [
    ("--config.tokenizer.vocab_size=350", "vocab_size = 300"),
    ("--config.tokenizer.lowercase=True", "lowercase = False"),
])  # fmt: skip
def test_a_field_that_contradicts_the_tokenizer_of_init(
    flag: str, there: str, refused: Train, pretrained_runs, tmp_path: pathlib.Path
) -> None:
    first = pretrained_runs("gpt2")
    message = refused("system=gpt2,shape=2x8x1,steps=20", f"--init={first}", flag)
    assert all(text in message for text in (flag, str(first), there))
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_of_init_without_a_token_that_the_system_needs(
    refused: Train, pretrained_runs, tmp_path: pathlib.Path
) -> None:
    """The message says what a user can do, not what a developer can."""
    given = "system=palm,shape=2x8x1,steps=20", f"--init={pretrained_runs('bert')}"
    message = refused(*given)
    assert "'bos'" in message and "--init" in message and "mask" in message
    assert "SPECIAL_TOKENS" not in message and not (tmp_path / "run").exists()


# --- Corpora --------------------------------------------------------------------------------------


def test_a_missing_corpus(refused: Train, tmp_path: pathlib.Path) -> None:
    message = refused(f"system=bert,steps=20,corpus=wikitext:{tmp_path}/nowhere")
    assert f"{tmp_path}/nowhere" in message and "folder" in message


def test_a_corpus_too_small_for_a_batch(refused: Train, tmp_path: pathlib.Path) -> None:
    tiny.write_wikitext(tmp_path / "wiki", num_sections=24)
    message = refused(
        f"system=bert,shape=2x8x1,steps=20,corpus=wikitext:{tmp_path}/wiki",
        "--config.tokenizer.vocab_size=150",
        "--config.long.batch_size=4000",
    )
    assert re.search(r"too small: .*\d+ .* 4000", message)


# --- Folders --------------------------------------------------------------------------------------


def test_a_workdir_that_cannot_be_written(refused: Train, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("in the way")
    message = refused(workdir=tmp_path / "file" / "run")
    assert re.search("workdir .*file/run .*--workdir", message)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_workdir_of_another_run(refused: Train, tmp_path: pathlib.Path) -> None:
    config = tiny.values("system=gpt2,shape=2x8x1,steps=30")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    message = refused()
    for line in ("system: 'gpt2' -> 'bert'", "optim.total_steps: 30 -> 20"):
        assert line in message
    assert "machine." not in message
    assert json.loads((tmp_path / "run/config.json").read_text()) == config


# --- Damaged caches -------------------------------------------------------------------------------


def test_damaged_cache_entries_are_noticed_and_made_anew(
    wikitext: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {k.replace(".", "__"): v for k, v in SETTINGS.items() if v != ""}
    text = f"system=bert,shape=2x8x1,steps=20,corpus=wikitext:{wikitext}"
    cache_dir = str(tmp_path / "cache")
    config = config_lib.resolve(tiny.values(text, **fields, machine__cache_dir=cache_dir))

    def batches() -> list[list]:
        data = load_data(config, systems.load("bert"), progress=False)
        return [
            phase.train.gather(np.arange(20), phase.max_len)["tokens"].tolist()
            for phase in data.phases
        ]

    before = batches()
    entries = [p for p in (tmp_path / "cache").iterdir() if p.is_dir() and p.name[0] != "."]
    assert len(entries) >= 4
    for k, entry in enumerate(sorted(entries)):
        path = max(entry.rglob("*"), key=lambda p: p.stat().st_size * p.is_file())
        data = bytearray(path.read_bytes())
        if k % 2:
            data[200] ^= 1
        path.write_bytes(data if k % 2 else data[: len(data) // 2])
    assert batches() == before
    assert caplog.text.count("is damaged") == len(entries)
    assert all(cache.damage(entry) is None for entry in entries)


# --- Full disks and interruptions -----------------------------------------------------------------


def test_an_interruption_where_python_drops_exceptions(refused: Train, monkeypatch) -> None:
    """JAX has a function called at each garbage collection; what it raises is only printed."""
    import time

    def _xla_gc_callback(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def interrupted(*_: object, **__: object) -> None:
        _xla_gc_callback()
        time.sleep(10)

    monkeypatch.setattr(loading, "load_data", interrupted)
    begun = time.monotonic()
    assert "interrupted; " in refused()
    assert time.monotonic() - begun < 5


def run_on_small_disk(
    size: str, disk: pathlib.Path, argv: list[str]
) -> subprocess.CompletedProcess:
    """Runs the program with a file system of `size` at `disk` that nobody else sees."""
    mount = f"mount -t tmpfs -o size={size} tmpfs {disk}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount in a namespace of their own")
    line = f'{mount} && "$@"; code=$?; find {disk}/run -name result.json; exit $code'
    program = [sys.executable, "-m", "scalelab.train", *argv]
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", line, "sh", *program],
        capture_output=True, text=True, cwd=tiny.ROOT, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place", ["cache", "workdir"])
def test_a_disk_that_really_fills_up(
    place: str, wikitext: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    cache_folder = disk / "cache" if place == "cache" else cache_dir
    workdir = disk / "run" if place == "workdir" else tmp_path / "run"
    argv = arguments(wikitext, cache_folder, workdir, ("--config.eval.every_steps=4",))
    done = run_on_small_disk("200k" if place == "cache" else "400k", disk, argv)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert len(re.findall("^error: ", done.stderr, re.MULTILINE)) == 1
    assert re.search("full|[Nn]o space left", done.stderr)
    assert "result.json" not in done.stdout


@pytest.mark.slow
def test_ctrl_c_while_preparing_and_then_the_same_command(
    wikitext: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Sent at many moments: whatever was begun is not trusted, and the last start succeeds."""
    argv = arguments(wikitext, tmp_path / "cache", tmp_path / "run", ())
    program = [sys.executable, "-m", "scalelab.train", *argv]
    interrupted = False
    for delay in (0.3, 0.8, 1.5, 2.5, 6.0):
        process = subprocess.Popen(
            program, cwd=tiny.ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        # Before our handler stands, Python ends itself by SIGINT.
        assert process.returncode in (0, 2, -signal.SIGINT), errors
        if process.returncode == 2:
            assert "Traceback" not in errors and "same command" in errors
            interrupted = True
    assert interrupted
    done = subprocess.run(program, cwd=tiny.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "run/result.json").read_text())["steps"] == 20
