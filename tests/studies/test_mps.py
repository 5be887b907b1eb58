"""NVIDIA's MPS around the processes of a pool, by an invented nvidia-cuda-mps-control."""

import os
import pathlib
import signal
import sys
import threading

import pytest
from test_jobs import Invented, planned

from scalelab.config import exits
from scalelab.resources import host
from scalelab.studies import mps

# As the program does, it answers where its daemon runs: here, where a file says so.
CONTROL = """#!/bin/sh
daemon=${CUDA_MPS_PIPE_DIRECTORY:-FOLDER}/daemon
if [ "$1" = -d ]; then echo "start ${CUDA_VISIBLE_DEVICES:-all}" >> FOLDER/calls; touch "$daemon"
elif [ ! -e "$daemon" ]; then echo "Cannot find MPS control daemon process"; exit 1
else read request; [ "$request" != quit ] || { rm "$daemon"; echo quit >> FOLDER/calls; }
fi
"""


@pytest.fixture
def calls(tmp_path, monkeypatch) -> pathlib.Path:
    """The file of what the program was asked; one GPU."""
    program = tmp_path / "bin" / mps.CONTROL
    program.parent.mkdir()
    program.write_text(CONTROL.replace("FOLDER", str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(host, "num_gpus", lambda: 1)
    return tmp_path / "calls"


class Pool(Invented):
    """A pool whose jobs note their folder of MPS, and fail."""

    def command(self, job) -> list[str]:
        code = "import os; print(os.environ.get('CUDA_MPS_PIPE_DIRECTORY')); os._exit(2)"
        return [sys.executable, "-c", code]


def test_it_runs_while_the_processes_do(calls, tmp_path) -> None:
    name = planned(tmp_path)
    Pool(tmp_path, name, 2, lambda *_: None).run()
    assert calls.read_text().splitlines() == ["start all", "quit"]
    folders = {path.read_text().strip() for path in tmp_path.glob("logs/*.log")}
    assert len(folders) == 1 and not pathlib.Path(folders.pop()).exists()


def test_an_interrupt_stops_it(calls, tmp_path) -> None:
    jobs = Invented(tmp_path, planned(tmp_path), 2, lambda *_: None)
    jobs.secs = 60.0
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(exits.Stopped):
        jobs.run()
    assert calls.read_text().splitlines() == ["start all", "quit"]


def test_where_it_is_left_alone(calls, tmp_path, monkeypatch, capsys) -> None:
    """For one process, without a GPU, and where a daemon runs already."""
    with mps.shared_gpu(1) as variables:
        assert variables == {}
    (tmp_path / "daemon").touch()
    with mps.shared_gpu(2) as variables:
        assert variables == {}
    (tmp_path / "daemon").unlink()
    monkeypatch.setattr(host, "num_gpus", lambda: 0)
    with mps.shared_gpu(2) as variables:
        assert variables == {}
    assert not calls.exists() and not capsys.readouterr().err


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 1\n"])
def test_without_it_one_line_says_so(calls, tmp_path, capsys, program: str | None) -> None:
    path = tmp_path / "bin" / mps.CONTROL
    path.unlink() if program is None else path.write_text(program)
    with mps.shared_gpu(2) as variables:
        assert variables == {}
    assert capsys.readouterr().err.count("\n") == 1
