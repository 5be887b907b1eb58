"""The command line that all binaries share."""

import dataclasses
import importlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import in_process
import pytest
import scratch
import tiny

from scalelab import train
from scalelab.config import cli, exits
from scalelab.config.fields import Count, choice
from scalelab.config.finetuning import FinetuneConfig
from scalelab.config.pretraining import Config
from scalelab.helpers import names
from scalelab.interop import hf
from scalelab.systems import Departure

FILE = f"--config={tiny.ROOT}/configs/pretrain.py:system=bert,steps=500"

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs `main` behind the command line; gives the exit code and what main returned."""

    def start(*argv: str, main: Callable[[Any], Any] = cli.read_config) -> tuple[int, Any]:
        returned, code = [], 0
        try:
            cli.run(lambda given: returned.append(main(given)), train.parser(), list(argv))
        except SystemExit as end:
            code = int(end.code or 0)
        return code, returned[0] if returned else None

    with in_process.signals_kept():
        yield start


@dataclasses.dataclass(frozen=True)
class SystemOptions:
    embed_width: Count | None = 128
    shared: Annotated[str, choice("all", "none")] = "all"


@dataclasses.dataclass(frozen=True)
class ObjectiveOptions:
    target: Annotated[str, choice("replaced", "token")] = "replaced"


def test_config_files_that_are_missing_or_not_python(run: Run, tmp_path, capsys) -> None:
    """The config.json of a run exists; the message must not say that it does not."""
    (tmp_path / "config.json").write_text("{}")
    assert run(f"--config={tmp_path}/config.json") == (2, None)
    assert "*.py" in (found := capsys.readouterr().err) and "no such" not in found
    assert run(f"--config={tmp_path}/other.py") == (2, None)
    assert "no such config file" in capsys.readouterr().err


def test_options_are_set_and_refused_like_fields(run: Run, monkeypatch, capsys) -> None:
    departures = (Departure("objective", "mlm+fake", "a paper, 1"),)
    scratch.add(monkeypatch, "systems", "fake", Options=SystemOptions, DEPARTURES=departures)
    scratch.add(monkeypatch, "objectives", "fake", Options=ObjectiveOptions)
    fake, group = FILE.replace("bert", "fake"), "--config.system_options"
    code, config = run(fake, f"{group}.embed_width=64", "--config.objective_options.target=token")
    assert code == 0 and config.system_options["embed_width"] == 64
    assert config.objective_options["target"] == "token"
    code, config = run(fake, f"{group}.shared=none", f"{group}.embed_width=None")
    assert code == 0 and config.system_options["shared"] == "none"  # a word of that option
    assert config.system_options["embed_width"] is None
    code, config = run(FILE, "--config.objective_options.whole_words=true")
    assert code == 0 and config.objective_options["whole_words"] is True
    for file, wrong, word in (
        (fake, "embed_widht=64", "'embed_width'"),
        (fake, "embed_width.x=3", "an option has one name"),
        (FILE, "shared=all", "shared of bert"),
        (fake, "embed_width=0", "embed_width = 0"),
        (fake, "embed_width", "=VALUE"),
    ):
        code, _ = run(file, f"{group}.{wrong}")
        error = capsys.readouterr().err
        assert code == 2 and word in error and "Traceback" not in error


@pytest.mark.parametrize("argv", [
    (FILE, "--config.model.width=64", "--config.model.dropout_rate=0.2"),
    ("--config.model.width=64", "--config.model.dropout_rate=0.2", FILE),
    ("--config", FILE.removeprefix("--config="), "--config.model.width=64")
    + ("--config.model.dropout_rate", "0.2"),
])  # fmt: skip
def test_fields_in_any_order_and_with_or_without_equals(argv: tuple[str, ...], run: Run) -> None:
    code, config = run(*argv)
    assert code == 0 and isinstance(config, Config)
    assert config.model.width == 64 and config.model.dropout_rate == 0.2
    assert config.optim.total_steps == 500


def test_a_field_can_be_set_to_none(run: Run) -> None:
    assert run(FILE)[1].optim.clip_norm == 1.0
    assert run(FILE, "--config.optim.clip_norm=None")[1].optim.clip_norm is None
    code, _ = run(FILE, "--config.model.width=None")
    assert code == 2


@pytest.mark.parametrize(("argv", "message"), [
    (("--init=none",), "--init=none"),
    (("--init=a", "--config.machine.init=b"), "--config.machine.init=b"),
    (("--init=",), "--init is empty"),
])  # fmt: skip
def test_what_a_training_may_begin_with(
    argv: tuple[str, ...], message: str, run: Run, capsys: pytest.CaptureFixture
) -> None:
    code, _ = run(FILE, *argv, main=cli.read_config)
    assert code == 2 and message in capsys.readouterr().err
    for flag in ("--init=a", "--config.machine.init=a"):
        _, config = run(FILE, flag, main=cli.read_config)
        assert config.machine.init == "a"


def ends(error: BaseException) -> Callable[[Any], None]:
    def main(given: Any) -> None:
        raise error

    return main


@pytest.mark.parametrize(("error", "code", "message"), [
    (OSError("no room"), 2, "error: no room\n"),
    (exits.Stopped("at 5"), 2, "error: at 5\n"),
    (exits.Stopped("at 5", exits.PREEMPTED), 75, "error: at 5\n"),
    (exits.Interrupted("SIGINT", "x"), 2, "interrupted by SIGINT: x; start the same command"),
    (exits.Interrupted("SIGTERM", "x"), 75, "interrupted by SIGTERM: x; "),
    (KeyboardInterrupt(), 2, "interrupted; "),
    (RuntimeError("RESOURCE_EXHAUSTED: 9 GB"), 2, "error: the device "),
])  # fmt: skip
def test_how_errors_end(
    error: BaseException, code: int, message: str, run: Run, capsys: pytest.CaptureFixture
) -> None:
    ended, _ = run(FILE, main=ends(error))
    assert ended == code and capsys.readouterr().err.startswith(message)
    if not isinstance(error, KeyboardInterrupt):  # Ctrl-C ends the process at once
        signal.raise_signal(signal.SIGINT)  # ignored, as libraries clean up at the exit


@pytest.mark.parametrize(("word", "field"), [
    ("optim.lr", "optim.learning_rate"), ("lr", "optim.learning_rate"),
    ("bs", "long.batch_size"), ("optim.epochs", "optim.total_epochs"),
    ("short.max_seq_length", "long.max_len"), ("net.hidden_size", "model.width"),
])  # fmt: skip
def test_names_of_other_libraries_lead_to_the_field(word, field, run: Run, capsys) -> None:
    assert run(FILE, f"--config.{word}=1")[0] == 2
    meant = capsys.readouterr().err.partition("did you mean ")[2].partition("?")[0]
    assert repr(field) in meant and ".eps" not in meant


def test_a_message_lists_few_of_many_names() -> None:
    many = [f"name{i}" for i in range(500)]
    assert names.nearest("zzz", many).count("name") == names.FEW + 1  # "valid names"
    assert names.nearest("zzz", many[:3]).count("name") == 4


def test_synonyms_are_of_names_that_exist() -> None:
    known = {name.rpartition(".")[2] for name in cli.field_names(Config)}
    known |= {name.rpartition(".")[2] for name in cli.field_names(FinetuneConfig)}
    assert {*names.SYNONYMS} - known == {"shape", "workdir"}  # an argument and a flag


def test_a_flag_of_another_command_is_not_proposed(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        in_process.run(hf, ["export", "run", "--workdir=out"])
    message = capsys.readouterr().err
    assert "--to" in message and message.count("--workdir") == 1


def test_mistakes_in_a_config_file(run: Run, tmp_path: pathlib.Path, capsys) -> None:
    """The line of one, and the name of the user's own file that is nearest to a wrong name."""
    (tmp_path / "rates.py").write_text("def get_config(arguments=''):\n    return confg\n")
    for name, message in (("rates.py", "rates.py:2: "), ("rate.py", "did you mean")):
        assert run(f"--config={tmp_path / name}")[0] == 2
        errors = capsys.readouterr().err
        assert message in errors and "rates.py" in errors


def test_faults_of_ours_show_where_they_are(run: Run) -> None:
    with pytest.raises(ValueError):
        run(FILE, main=lambda _: int("x"))


def test_ctrl_c_waits_for_the_end_of_an_import(
    run: Run, tmp_path: pathlib.Path, monkeypatch, capsys
) -> None:
    """Broken off, an import of compiled code ends in any error, or is left half-loaded."""
    (tmp_path / "interrupted_import.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\nCOMPLETE = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def main(given: Any) -> None:
        importlib.import_module("interrupted_import")
        time.sleep(10)
        pytest.fail("the signal was lost")

    assert run(FILE, main=main)[0] == 2
    assert "interrupted; " in capsys.readouterr().err
    assert sys.modules.pop("interrupted_import").COMPLETE


def test_sigterm_before_the_loop_asks_to_be_started_again(run: Run, capsys) -> None:
    def main(given: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(10)
        pytest.fail("the signal was lost")

    assert run(FILE, main=main)[0] == exits.PREEMPTED
    assert "interrupted; " in capsys.readouterr().err


ENOUGH = """
import sys
from scalelab.config import cli
with cli.one_message("nothing", only_tells={}):
    {}
"""


@pytest.mark.parametrize(("only_tells", "body", "code", "message"), [
    (True, "while True: print('x' * 1000)", 0, ""),
    (True, "print('x' * 1000, flush=True); sys.stdin.read(); print('y')", 0, ""),
    (False, "while True: print('x' * 1000)", exits.FAILED, "error: [Errno 32] Broken pipe"),
])  # fmt: skip
def test_a_reader_that_has_seen_enough(only_tells, body, code, message) -> None:
    """As `| head` has: a program that only tells ends without a word, with buffered output too."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    program = [sys.executable, "-c", ENOUGH.format(only_tells, body)]
    with subprocess.Popen(program, env=variables, text=True, **pipes) as talking:
        assert talking.stdout.readline() == "x" * 1000 + "\n"
        talking.stdout.close()
        talking.stdin.close()
        errors = talking.stderr.read()
        assert talking.wait(60) == code
    assert message in errors if message else not errors


def test_a_second_signal_acts_at_once(capfd) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with exits.Interrupt() as interrupt:
            assert interrupt.received is None
            signal.raise_signal(signal.SIGINT)
            assert interrupt.received == "SIGINT" and "stopping; " in capfd.readouterr().err
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
