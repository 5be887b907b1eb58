"""The files of launch/: what they start, what they print instead, how local.sh ends."""

import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import test_package
import tiny
import yaml
from kubeflow_trainer_api import models

from scalelab.config import exits
from scalelab.helpers.names import find_config

LAUNCH = tiny.ROOT / "launch"
# Notes its arguments and its variables of JAX.
RECORDER = """#!/usr/bin/env bash
printf '%s\\n' "$(basename "$0")" "$@" "$(env | grep ^JAX_ | sort)" >> "$RECORDS.$BASHPID"
"""
# Ends as process `i` does in the test.
STUB = """#!{python}
import os, signal, sys, time
def stop(*_):
    time.sleep(1)
    sys.exit({stopped})
signal.signal(signal.SIGTERM, stop)
open(os.environ["RECORDS"] + os.environ["JAX_PROCESS_ID"], "w").write(str(os.getpid()))
if os.environ["JAX_PROCESS_ID"] == "1" and {failed}:
    sys.exit({failed})
time.sleep(60)
"""


def program(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


COMMANDS = ("local.sh 3", "one_gpu.sh 1", "slurm.sbatch", "tpu_pod.sh 'my pod' europe-west4-b")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dry_run_starts_nothing_and_prints_what_a_run_starts(command: str, tmp_path) -> None:
    for name in ("python", "srun", "gcloud", "scontrol"):
        program(tmp_path / name, RECORDER)
    words = ["bash", *shlex.split(f"{LAUNCH}/{command}"), "--workdir=runs/a b", "--config=x:y='z'"]

    def started(command: list[str]) -> tuple[str, list[str]]:
        """Returns the output, and all that the programs noted."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        env |= {"PATH": f"{tmp_path}:{env['PATH']}", "RECORDS": f"{tmp_path}/record"}
        env.pop("PYTHON", None)
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        files = list(tmp_path.glob("record.*"))
        texts = sorted(file.read_text() for file in files)
        for file in files:
            file.unlink()
        return done.stdout, texts

    printed, nothing = started([*words[:2], "--dry_run", *words[2:]])
    _, expected = started(words)
    assert not nothing and expected
    assert started(["bash", "-c", printed])[1] == expected
    assert all("--workdir=runs/a" in text for text in expected)


@pytest.mark.parametrize(
    ("stopped", "failed", "code"),
    [(75, 0, 75), (143, 0, 75), (0, 0, 0), (75, 2, 2), (75, 137, 137)],
)
def test_how_local_sh_ends(stopped: int, failed: int, code: int, tmp_path: pathlib.Path) -> None:
    """After SIGTERM all end by themselves; after a failure the others are killed."""
    text = STUB.format(python=sys.executable, stopped=stopped, failed=failed)
    stub = program(tmp_path / "stub", text)
    env = os.environ | {"PYTHON": str(stub), "RECORDS": str(tmp_path / "pid")}
    begun = time.monotonic()
    launched = subprocess.Popen(
        ["bash", LAUNCH / "local.sh", "3"], env=env, stderr=subprocess.PIPE, text=True
    )
    if not failed:
        while len([p for p in tmp_path.glob("pid*") if p.read_text()]) < 3:
            time.sleep(0.1)
        launched.send_signal(signal.SIGTERM)
    _, errors = launched.communicate(timeout=50)
    assert launched.returncode == code and time.monotonic() - begun < 45
    assert errors.count("\n") == (1 if failed else 0), errors
    assert not failed or "process 1 " in errors
    for file in tmp_path.glob("pid*"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


@pytest.mark.parametrize(("run", "code", "last"), [("sleep 60", 0, "pack"), ("exit 2", 2, "run")])
def test_one_gpu_packs_what_is_finished_when_the_time_is_over(run, code, last, tmp_path) -> None:
    text = f'#!/bin/bash\necho "$3" >> "$RECORDS"\n[[ $3 != run ]] || {run}\n'
    env = os.environ | {"PYTHON": str(program(tmp_path / "stub", text))}
    words = ["0.01", "--config=studies/family:scale=nano", f"--workdir={tmp_path}"]
    done = subprocess.run(
        ["bash", LAUNCH / "one_gpu.sh", *words], env=env | {"RECORDS": str(tmp_path / "record")}
    )
    assert done.returncode == code
    assert (tmp_path / "record").read_text().split()[-1] == last


def test_hadolint_has_nothing_to_say_and_the_image_has_what_a_wheel_is_built_from(tmp_path):
    text = (LAUNCH / "Dockerfile").read_text()
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    lint = shutil.which("hadolint", path=path)
    assert lint is not None
    for content, code in ((text, 0), (text.replace("COPY", "ADD"), 1)):
        (tmp_path / "Dockerfile").write_text(content)
        assert subprocess.run([lint, tmp_path / "Dockerfile"]).returncode == code
    copies = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    assert {*sum(copies, [])} == {*test_package.PARTS}


def invalid(manifest: dict) -> bool:
    """Returns whether the generated classes of the API refuse a manifest, or drop a part of it."""
    kinds = {"Job": models.IoK8sApiBatchV1Job, "JobSet": models.JobsetV1alpha2JobSet}
    try:
        return kinds[manifest["kind"]].from_dict(manifest).to_dict() != manifest
    except ValueError:
        return True


@pytest.mark.parametrize("name", ["job", "jobset"])
def test_manifests_follow_their_schema(name: str) -> None:
    text = (LAUNCH / f"k8s/{name}.yaml").read_text()
    assert not invalid(yaml.safe_load(text))
    pairs = ("backoffLimit", "backofLimit"), ("args:", "arg:"), ("image: R", "image: [R]\n#")
    for right, wrong in pairs:
        assert right in text and invalid(yaml.safe_load(text.replace(right, wrong))), wrong


def test_the_hosts_of_the_job_set_find_each_other() -> None:
    manifest = yaml.safe_load((LAUNCH / "k8s/jobset.yaml").read_text())
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert env.keys() == {"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"}
    assert int(env["JAX_NUM_PROCESSES"]) == spec["parallelism"] == spec["completions"]
    assert spec["completionMode"] == "Indexed" and job["replicas"] == 1
    name = manifest["metadata"]["name"]  # SET-JOB-INDEX-POD.SET
    assert env["JAX_COORDINATOR_ADDRESS"].startswith(f"{name}-{job['name']}-0-0.{name}:")
    assert "--config.machine.distributed=True" in container["args"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [exits.FAILED]
    for argument in container["args"]:
        if argument.startswith("--config="):
            find_config(argument.removeprefix("--config=").partition(":")[0])
