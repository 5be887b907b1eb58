"""`hf export --push` against a hub on this machine: the files there, and the scores in the card."""

import base64
import http.server
import json
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator

import huggingface_hub
import law_folders
import pytest
import run_folders
from huggingface_hub import constants

from scalelab.interop import hf, output_folder
from scalelab.lab.load import task_runs

pytestmark = pytest.mark.slow
NAME = "me/small-bert"


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers what an upload of small files asks; keeps the files of the commits."""

    made: list[str]
    files: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        answer = {}
        if self.path == "/api/repos/create":
            self.made.append(json.loads(body)["name"])
            answer = {"url": f"http://{self.headers['Host']}/{NAME}"}
        elif self.path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            answer = {"files": [{"path": file["path"]} | regular for file in asked]}
        elif self.path == f"/api/models/{NAME}/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    file = line["value"]
                    self.files[file["path"]] = base64.b64decode(file["content"])
            answer = {"commitUrl": f"https://huggingface.co/{NAME}/commit/1", "commitOid": "1"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    Hub.made, Hub.files = [], {}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield Hub
        server.shutdown()


@pytest.fixture
def run(pretrained_runs: Callable[[str], pathlib.Path], tmp_path: pathlib.Path) -> pathlib.Path:
    """A pre-training with fine-tunings and an evaluation."""
    folder = shutil.copytree(pretrained_runs("bert"), tmp_path / "run")
    run_folders.add_tasks(folder, ("cola", "mnli"), num_seeds=2)
    evaluation = shutil.copytree(folder / "tasks/cola/seed0", folder / "tasks/blimp/seed0")
    for file, fields in (
        ("config.json", {"task": "blimp"}),
        ("result.json", {"task": "blimp", "eval": {"dev": {"accuracy": 0.75}}}),
    ):
        values = json.loads((evaluation / file).read_text())
        (evaluation / file).write_text(json.dumps(values | fields))
    return folder


def test_a_push_uploads_the_export_and_its_scores(
    hub: type[Hub], run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    to = tmp_path / "out"
    law_folders.start(capsys, hf, "export", run, f"--to={to}")
    (to / "mine.txt").write_text("stays here")
    flags = f"--to={to}", f"--push={NAME}"
    code, output, errors = law_folders.start(capsys, hf, "export", run, *flags)
    assert code == 0 and NAME in output and hub.made == [NAME.split("/")[1]], errors
    exported = {p.name: p.read_bytes() for p in to.iterdir() if p.name != "mine.txt"}
    assert hub.files == exported and {"model.safetensors", output_folder.MARKER} <= exported.keys()

    card = huggingface_hub.ModelCard(hub.files["README.md"].decode())
    found = {
        (r.dataset_config or r.dataset_type, r.dataset_split, r.metric_type): r.metric_value
        for r in card.data.eval_results
    }
    expected = {
        (name, *key): sum(task.values(key)) / len(task.finished)
        for name, task in task_runs.read(run / "tasks").items()
        for key in task.keys
    }
    assert found == expected and len(expected) == 4
    assert card.data.pipeline_tag == "fill-mask" and "bert" in card.data.tags

    hub.files.clear()
    code, *_ = law_folders.start(capsys, hf, "export", run, f"--push={NAME}", "--step=0")
    card = huggingface_hub.ModelCard(hub.files["README.md"].decode())
    assert code == 0 and card.data.eval_results is None  # the scores are those of the last step


def test_without_token_or_network_there_is_one_message(
    run: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for token, name, word in (
        ("", NAME, "HF_TOKEN"), ("hf_secret", NAME, "upload"), ("hf_secret", "a/b/c", "a/b/c"),
    ):  # fmt: skip
        monkeypatch.setenv("HF_TOKEN", token)
        code, _, message = law_folders.start(capsys, hf, "export", run, f"--push={name}")
        assert code == 2 and word in message and message.count("\n") == 1
