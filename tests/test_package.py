"""The package as a user gets it: built, installed elsewhere, run outside of any checkout."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
import tiny

pytestmark = pytest.mark.ci
PARTS = ("scalelab", "configs", "setup.py", "pyproject.toml", "README.md", "LICENSE")
PYTHON = re.compile(r"python3\.(\d+)")


def run(*command: str | pathlib.Path, cwd: pathlib.Path) -> str:
    """Runs a command without the checkout's modules and the tests' settings; returns its output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "XLA_", "JAX_"))}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The wheel, built from the source distribution, that was built from a copy of the files."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "source").mkdir()
    for name in PARTS:
        copy = shutil.copytree if (tiny.ROOT / name).is_dir() else shutil.copy
        copy(tiny.ROOT / name, folder / "source" / name)
    run(sys.executable, "-m", "build", "source", "--outdir", "dist", cwd=folder)
    (made,) = (folder / "dist").glob("*.whl")
    return made


def make_environment(python: str, folder: pathlib.Path) -> pathlib.Path:
    """Makes an empty environment; returns its interpreter."""
    run(python, "-m", "venv", folder / "env", cwd=folder)
    return folder / "env/bin/python"


def train(interpreter: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Trains for four steps by the console script, in an empty folder; returns the run folder."""
    corpus, here = tiny.write_wikitext(folder / "corpus"), folder / "empty"
    here.mkdir()
    flags = tiny.train_flags("run", corpus, folder / "cache", config="pretrain")
    run(interpreter.with_name("scalelab"), "train", *flags, cwd=here)
    return here / "run"


def test_the_package_holds_every_file(wheel: pathlib.Path) -> None:
    names = {*zipfile.ZipFile(wheel).namelist()}
    for folder, inside in (("scalelab", "scalelab"), ("configs", "scalelab/configs")):
        for path in (tiny.ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"{inside}/{path.relative_to(tiny.ROOT / folder)}" in names


def test_it_runs_outside_of_the_checkout(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Its dependencies are those of the present environment, its modules the installed ones."""
    interpreter = make_environment(sys.executable, tmp_path)
    run(interpreter, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    (site,) = (tmp_path / "env/lib").glob("python3*/site-packages")
    (site / "present.pth").write_text(sysconfig.get_path("purelib"))
    scalelab, folder = interpreter.with_name("scalelab"), train(interpreter, tmp_path)
    here = folder.parent
    told = json.loads((folder / "environment.json").read_text())
    assert told["git_commit"] is None  # no repository keeps these modules
    where = run(interpreter, "-c", "import scalelab; print(scalelab.__file__)", cwd=here)
    assert str(site) in where
    assert run(scalelab, "--version", cwd=here).startswith("scalelab ")
    assert "ElectraForPreTraining" in run(scalelab, "systems", "electra", cwd=here)
    for program in ("eval tsv", "hf", "study plan"):
        assert "--workdir" in run(scalelab, *program.split(), "--help", cwd=here)
    assert "# " in run(scalelab, "runs", "card", "run", cwd=here)  # a template
    run(interpreter, "-c", "from scalelab.thesis import published; published.epochs()", cwd=here)


def newest_python() -> str | None:
    """Returns the newest interpreter here that is newer than the present one."""
    root = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    folders = [*map(pathlib.Path, os.get_exec_path()), *root.glob("versions/*/bin")]
    paths = [path for folder in folders for path in folder.glob("python3.*")]
    found = {path: int(m[1]) for path in paths if (m := PYTHON.fullmatch(path.name))}
    found = {path: minor for path, minor in found.items() if minor > sys.version_info.minor}
    for path in sorted(found, key=lambda path: -found[path]):
        if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return str(path)
    return None


def test_the_newest_python_without_tensorflow(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """With the newest releases that this Python resolves to; TensorFlow is left out."""
    if (python := newest_python()) is None:
        pytest.skip(f"no Python newer than 3.{sys.version_info.minor} on this machine")
    interpreter = make_environment(python, tmp_path)
    metadata = zipfile.ZipFile(wheel).read(
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/METADATA"
    )
    needed = re.findall(r"^Requires-Dist: (?!tensorflow)(.*)$", metadata.decode(), re.MULTILINE)
    needed = [line for line in needed if "extra ==" not in line]
    run(interpreter, "-m", "pip", "install", "--quiet", "--no-compile", *needed, cwd=tmp_path)
    run(interpreter, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    folder = train(interpreter, tmp_path)
    told = json.loads((folder / "environment.json").read_text())
    assert PYTHON.search(python)[1] == told["python"].split(".")[1]
    assert "tensorflow" not in told["packages"] and (folder / "result.json").is_file()
