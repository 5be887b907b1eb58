"""A peer as its users start it: a process of its own, without JAX, with malloc as glibc has it.

The process reads a folder that `Apart` wrote, says the loss and then, for each number of steps that
it is told on its standard input, the seconds that they took by the clock and of all threads.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import side_by_side
from benchmarks.step_case import Case, Ours
from scalelab.config import cli

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = "import sys; from benchmarks import step_apart; step_apart.serve(sys.argv[1])"


class Apart:
    """A side in a process of its own; the same net on the same batch as its kind in this process.

    Args:
      ours: gives the weights and the masked batch.
      kind: of step_peers.KINDS.
    """

    def __init__(self, ours: Ours, kind: str) -> None:
        import torch

        from benchmarks import step_peers

        here = step_peers.make(kind, ours)
        fields = {f.name: getattr(ours.case, f.name) for f in dataclasses.fields(ours.case)}
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        (folder / "asked.json").write_text(json.dumps({"kind": kind, "case": fields}))
        torch.save([here.model.state_dict(), here.batch], folder / "arrays.pt")
        del here
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )  # fmt: skip
        try:
            said = self._answer()
        except BaseException:
            self.close()
            raise
        self._loss, self.compile_secs = said["loss"], said["compile_secs"]

    def loss(self) -> float:
        """Of the batch, without dropout."""
        return self._loss

    def timed(self, steps: int) -> side_by_side.Spent:
        """What so many steps took there."""
        print(steps, file=self._process.stdin, flush=True)
        return side_by_side.Spent(**self._answer())

    def __call__(self, steps: int) -> None:
        """Takes steps."""
        self.timed(steps)

    def close(self) -> None:
        """Ends the process, whatever it is at."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def _answer(self) -> dict[str, float]:
        line = self._process.stdout.readline()
        if not line:
            raise cli.Stopped(f"the peer's process ended with {self._process.wait()}")
        return json.loads(line)


def serve(path: str) -> None:
    """The process: takes steps when told, until nobody tells it any more."""
    import torch

    from benchmarks import step_peers

    folder = pathlib.Path(path)
    asked = json.loads((folder / "asked.json").read_text())
    weights, batch = torch.load(folder / "arrays.pt")
    side: Any = step_peers.KINDS[asked["kind"]](Case(**asked["case"]), batch)
    side.model.load_state_dict(weights)
    assert "jax" not in sys.modules
    _say(loss=side.loss(), compile_secs=side.compile_secs)
    for line in sys.stdin:
        _say(**side_by_side.timed(side, int(line))._asdict())


def _say(**found: float) -> None:
    print(json.dumps(found), flush=True)
