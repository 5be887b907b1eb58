"""The commands in the blocks of the pages run, in the order and the words of the text."""

import gzip
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable

import a_study
import glue_folder
import law_folders
import parsed_commands
import pytest
import run_folders
import test_docs as docs
import tiny
from eval.probes import test_probe_layers
from tasks import test_answers

AS_THEY_STAND = ("tutorials/hugging_face", "tutorials/own_labels", "tutorials/own_text")
QUICK = (  # commands that are run as they stand, wherever they do
    "python -m scalelab.data.inspect --config=quickstart", "scalelab study list",
    "python -m scalelab.lab.compound --n=0.39M",
)  # fmt: skip
WITH_LESS = ("../README", "../zoo/README", "accelerators", "checkpoints", "compare", "finetune",
             "train", "evaluations", "tutorials/cluster", "tutorials/first_comparison",
             "tutorials/own_study", "tutorials/own_system")  # fmt: skip
LEFT_OUT = {  # part of a command -> why it is only parsed
    "make ": "installs, or runs these tests",
    ".venv": "belongs to the shell",
    "-m pytest ": "tests of a system; test_contract.py and tests/systems are run anyway",
    "--push": "needs the hub; tests/interop/test_hub.py has a mock",
    "studies/thesis_7_5_1": "hours; tests/thesis and tests/studies run parts",
    "thesis_7_5_1 --to": "needs that study",
    "study status --workdir=runs/thesis": "needs that study",
    "study report --workdir=runs/thesis": "needs that study",
    "--workdir=results/": "hours, or needs such a study",
    "scalelab.eval.babylm": "tests/eval/test_babylm.py runs it on invented files",
    "--measure": "times large shapes; tests/test_shapes.py runs it",
}
# Fields that make a model, a pre-training, a study and a fine-tuning small.
NET = {"model.num_heads": 2, "model.width": 8, "model.num_layers": 1}
TRAIN = {name.removeprefix("pretrain."): v for name, v in a_study.SMALL.items()}
TASK = {"max_len": 16, "batch_size": 2, "epochs": 1}
STUDY = {f"pretrain.{name}": v for name, v in TRAIN.items() if not name.endswith("_steps")}
STUDY |= {"pretrain.optim.total_tokens": 2000, "pretrain.optim.warmup_tokens": 200, "seeds": 1}
STUDY |= {"stages.main.shapes": "('2x8x1',)", "finetune.seeds": 2}
STUDY |= {"finetune.fields": tuple(f"{name}={value}" for name, value in TASK.items())}


def in_small(words: list[str]) -> list[str]:
    """A command as a test runs it: with smaller numbers, and with --dry_run on a cluster."""
    fields: dict[str, object] = {}
    text = shlex.join(words)
    if "study run" in text or "study plan" in text:
        fields = STUDY
    elif "--config=" in text:
        fields = TRAIN | NET
    elif "--init=" in text:
        # The prompt of a task as text is long.
        fields = TASK | {"max_len": 60 if "--as=text" in text or "multi30k" in text else 16}
    if words[0] in ("sbatch", "launch/tpu_pod.sh"):
        place = next(i for i, word in enumerate(words) if word.startswith("launch/"))
        return ["bash", words[place], "--dry_run", *words[place + 1 :]]
    program = ["bash"] if words[0].startswith("launch/") else [sys.executable, "-m"]
    less = [f"--config.{name}={value}" for name, value in fields.items() if f".{name}=" not in text]
    less += ["--seeds=2"] * ("epochs" in fields)
    return [*program, *words[2 * (words[0] == "python") :], *less]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The home of the programs: tokenizers and the quickstart's language are made once."""
    return tmp_path_factory.mktemp("home")


def run_command(words: list[str], folder: pathlib.Path, home: pathlib.Path) -> None:
    """Runs a command in a folder; it must succeed."""
    env = os.environ | {"PYTHONPATH": str(tiny.ROOT), "HOME": str(home), "PYTHON": sys.executable}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (shlex.join(words), done.stdout[-500:], done.stderr[-2000:])


def shown(page: str) -> list[list[str]]:
    """The commands of a page's blocks that are run."""
    blocks = "\n".join(block[0] for block in docs.FENCE.finditer(docs_page(page).read_text()))
    found = [words for words in docs.commands(blocks) if "..." not in words]
    return [w for w in found if not any(part in shlex.join(w) for part in LEFT_OUT)]


def docs_page(page: str) -> pathlib.Path:
    return (tiny.ROOT / f"docs/{page}.md").resolve()


def prepare(page: str, folder: pathlib.Path, wikitext: pathlib.Path) -> None:
    """Puts into a folder what a page takes for granted."""
    docs.write_files(docs_page(page).read_text(), folder)
    for name in ("zoo", "docs", "launch"):
        (folder / name).symlink_to(tiny.ROOT / name)
    (folder / "FOLDER_OR_HUB_NAME").symlink_to("zoo/bert-2x128x2")
    if page != "checkpoints":  # this page writes it
        shutil.copytree(wikitext, folder / "DIR")
        for name in ("train.tsv", "dev.tsv"):
            (folder / f"DIR/{name}").write_text("text\tlabel\ngood film\t1\nbad film\t0\n")
    glue_folder.write(folder / "GLUE_DIR")
    (folder / "NEW.csv").write_text("text\nA good film\n")
    pairs = {"sentence_good": "A dog sees.", "sentence_bad": "A dog see.", "UID": "agreement",
             "linguistics_term": "agreement"}  # fmt: skip
    (folder / "BLIMP_DIR/data").mkdir(parents=True)
    (folder / "BLIMP_DIR/data/agreement.jsonl").write_text(json.dumps(pairs) + "\n")
    for name in ("panx", "squad"):
        (folder / "DATA" / name).mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (folder / f"DATA/panx/{split}-en.tsv").write_text("In\tO\nParis\tB-LOC\n\nAnn\tB-PER\n")
    answered = test_answers.squad(("Ann is in Paris.", "Paris", 10), ("Bob sees.", "Bob", 0))
    for split in ("train", "dev"):
        (folder / f"DATA/squad/{split}-v1.1.json").write_text(answered)
    captions = folder / "DATA/multi30k/task1/raw"
    captions.mkdir(parents=True)
    for split in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for end, line in (("en", "A dog sees a cat."), ("de", "Ein Hund sieht eine Katze.")):
            with gzip.open(captions / f"{split}.{end}.gz", "wt") as file:
                file.write(f"{line}\n" * 4)
    copa = {"premise": "He fell.", "choice1": "It hurt.", "choice2": "He ran.",
            "question": "effect", "label": 0}  # fmt: skip
    (folder / "SUPERGLUE_DIR/COPA").mkdir(parents=True)
    for split in ("train", "val"):
        (folder / f"SUPERGLUE_DIR/COPA/{split}.jsonl").write_text(f"{json.dumps(copa)}\n" * 4)
    (folder / "UD_DIR").mkdir()
    for seed, split in enumerate(("train", "dev", "test")):
        (folder / f"UD_DIR/en-ud-{split}.conllu").write_text(test_probe_layers.conllu(40, seed))


def prepare_runs(page: str, folder: pathlib.Path, finished: Callable) -> None:
    """Makes the runs that a page takes for granted."""
    runs = folder / "runs"
    runs.mkdir()
    if page == "compare":  # read, not used: invented
        run_folders.write(runs / "bert")
        run_folders.write(runs / "roberta", config=run_folders.config_of("roberta"))
        law_folders.write(runs / "thesis/runs")
        for name in ("bert-2x128x2", "bert-2x128x2-mask_rate_0p4"):
            for seed in (0, 1):
                config = run_folders.config_of(seed=seed)
                run_folders.write(runs / f"masks/runs/{name}-seed{seed}", config=config)
    elif page in ("checkpoints", "finetune", "evaluations"):
        for system in ("bert", "gpt2", "bart", "t5", "word2vec")[: 1 + 4 * (page == "finetune")]:
            shutil.copytree(finished(system), runs / system)
        (runs / "roberta-glue").symlink_to("bert-glue")
        (runs / "electra-blimp").symlink_to("bert-blimp")
        (runs / "encoders").symlink_to(tiny.ROOT / "results/encoders")


@pytest.mark.ci
@pytest.mark.parametrize("page", [None, *AS_THEY_STAND])
def test_commands_run_as_they_stand(
    page: str | None, tmp_path: pathlib.Path, home: pathlib.Path, wikitext: pathlib.Path
) -> None:
    todo = [shlex.split(line) for line in QUICK]
    if page:
        todo = shown(page)
        assert len(todo) > 3
        prepare(page, tmp_path, wikitext)
    else:
        all_shown = [words for page in docs.PAGES for words in docs.commands(page.read_text())]
        assert all(words in all_shown for words in todo)
    programs = [words[2 * (words[0] == "python") :] for words in todo]
    env = os.environ | {"PYTHONPATH": str(tiny.ROOT), "HOME": str(home)}
    for words, (code, out, errors) in zip(
        todo, parsed_commands.answers(programs, run=True, cwd=tmp_path, env=env), strict=True
    ):
        assert code == 0, (shlex.join(words), out[-500:], errors[-2000:])


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_LESS)
def test_commands_run_with_less(
    page: str, tmp_path: pathlib.Path, home: pathlib.Path, wikitext: pathlib.Path,
    pretrained_runs: Callable,
) -> None:  # fmt: skip
    """In their order, with a tiny model, few tokens, and invented data in the place of real
    ones."""
    prepare(page, tmp_path, wikitext)
    prepare_runs(page, tmp_path, pretrained_runs)
    for words in shown(page):
        run_command(in_small(words), tmp_path, home)
    if page == "../README":
        assert (tmp_path / "runs/dropout/reports/dropout/report.html").is_file()


@pytest.mark.ci
def test_what_no_test_runs_has_a_reason() -> None:
    """Every page with commands is listed; every reason is needed."""
    run = {docs_page(page) for page in (*AS_THEY_STAND, *WITH_LESS)}
    everywhere = []
    for page in docs.PAGES:
        blocks = "\n".join(block[0] for block in docs.FENCE.finditer(page.read_text()))
        found = [shlex.join(words) for words in docs.commands(blocks)]
        left = [text for text in found if not any(part in text for part in LEFT_OUT)]
        assert not left or page in run, (page, left)
        everywhere += found
    assert all(any(part in text for text in everywhere) for part in LEFT_OUT)
