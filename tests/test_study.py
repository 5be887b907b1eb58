"""The study binary, from the plan to the report, in real processes."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import a_study
import glue_folder
import in_process
import pandas as pd
import parsed_commands
import pytest
import tiny

from scalelab.lab import signal_to_noise
from scalelab.lab.load import study_runs
from scalelab.training import pretrained

SECS = 500.0


def write_pairs(folder: pathlib.Path) -> None:
    pairs = folder / "blimp/x.jsonl"
    pairs.parent.mkdir(parents=True)
    texts = {"sentence_good": "the man is here", "sentence_bad": "the man are here"}
    row = json.dumps(texts | {"UID": "x", "linguistics_term": "agreement"})
    pairs.write_text(f"{row}\n" * 4)


@pytest.fixture
def config(tmp_path, wikitext, cache_dir) -> pathlib.Path:
    write_pairs(tmp_path / "evaluations")
    return a_study.config_file(
        tmp_path / "two.py",
        pretrain__data__corpus=f"wikitext:{wikitext}",
        pretrain__machine__cache_dir=str(cache_dir),
        finetune__tasks=("wnli",),
        finetune__data=str(glue_folder.write(tmp_path / "glue")),
        finetune__fields=("batch_size=2", "max_len=16", "epochs=1"),
        finetune__seeds=2,
        stages={"main": a_study.stage(systems=("bert", "gpt2", "roberta"))},
        evaluations=("blimp",),
        evaluation_data=str(tmp_path / "evaluations"),
        evaluation_shares=(0.5,),
        tables=("data", "small", "evaluations", "grid"),
        figures=("loss_by_tokens",),
    )


def start(command: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scalelab.study", command, *arguments],
        cwd=tiny.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def study(command: str, *arguments: str) -> tuple[int, str]:
    process = start(command, *arguments)
    out, err = process.communicate(timeout=SECS)
    return process.returncode, out + err


LIST = ("list", "--comparison=scalelab.thesis.comparison")
OWN_FLAGS = {"run": {"config", "workdir", "workers"}, "pack": {"workdir", "study", "to"}}
FORMATS = "--config=configs/studies/formats.py:scale=tiny"
MISTAKES = {
    ("--workdir=w",): "plan, run",
    ("rnu", "--workdir=w"): "'run'",
    ("plan", "--workdir=w"): "--config is missing",
    ("plan", f"{FORMATS}i", "--workdir=w"): "expected one",
    ("plan", FORMATS, "--workdir=w", "--config.stages.main.shaeps=('2x8x1',)"): "shaeps",
    ("status", "--workdir=nowhere"): "holds no study",
}


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, ...], tuple[int, str]]:
    """Exit code and text of commands that end at once."""
    asked = [LIST, *((command, "--help") for command in OWN_FLAGS), *MISTAKES]
    commands = [["scalelab.study", *words] for words in asked]
    found = parsed_commands.answers(commands, run=True, cwd=tiny.ROOT)
    return {
        words: (code, out + errors) for words, (code, out, errors) in zip(asked, found, strict=True)
    }


def test_list_without_a_folder_has_the_names_that_a_study_may_use(answers) -> None:
    code, out = answers[LIST]
    named = set(out.replace(",", " ").split())
    assert code == 0
    assert {"scores", "strategies", "loss_by_tokens", "sst2", "blimp", "1a"} <= named
    assert "bits_per_byte" in named


@pytest.mark.parametrize("command", OWN_FLAGS)
def test_help_of_a_command_has_its_own_flags(command: str, answers) -> None:
    code, out = answers[command, "--help"]
    own = OWN_FLAGS[command]
    assert (code, set(re.findall(r"^  --(\w+) ", out, re.MULTILINE))) == (0, own | {"version"})
    assert ("--config.name" in out) == ("config" in own) and "list  " not in out


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_from_plan_to_report(config: pathlib.Path, tmp_path: pathlib.Path, capsys) -> None:
    """Planned, interrupted, continued by two processes at once, reported, packed."""
    workdir = tmp_path / "w"
    asked = [f"--config={config}", f"--workdir={workdir}"]
    code, printed = study("plan", *asked)
    assert code == 0, printed
    assert "3 runs" in printed
    assert not list((workdir / "runs").glob("*/checkpoints"))
    planned = json.loads((workdir / "plans/two.json").read_text())["runs"]
    assert [run["steps"] for run in planned] == [6, 6, 6]

    process = start("run", *asked, "--workers=1")
    until = time.monotonic() + SECS
    while not list((workdir / "runs").glob("*/metrics.jsonl")) and time.monotonic() < until:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECS)
    assert process.returncode == 2
    assert "same command" in err
    assert "Traceback" not in err

    both = [start("run", *asked, "--workers=1") for _ in range(2)]
    printed = [p.communicate(timeout=SECS) for p in both]
    assert [p.returncode for p in both] == [0, 0], printed
    for run in ("bert-2x8x1-seed0", "gpt2-2x8x1-seed0"):
        for kind, times in (("pretrain", 1), ("finetune", 2)):  # two seeds are fine-tuned
            log = (workdir / f"logs/{run}.{kind}.log").read_text()
            assert log.count("finished ") == times, log  # nothing ran twice
    done = study_runs.read(workdir)
    assert all(run.finished and len(run.tuned["tasks"]["wnli"].finished) == 2 for run in done.runs)
    for run in done.runs:  # the checkpoint in the middle is another model
        both = run.tuned["tasks"]["blimp"].finished + run.tuned["early/0.5"]["blimp"].finished
        assert len({seed.result.init_digest for seed in both}) == len(both) == 2
        step = next(line["step"] for line in run.lines if "eval/share" in line)
        digest = pretrained.tree_digest(pretrained.load(run.folder, int(step)).params)
        assert (step, both[1].result.init_digest) == (3, digest)
    assert planned[0]["num_params"] == done.runs[0].result.params
    assert planned[0]["flops"] == pytest.approx(done.runs[0].result.flops)

    code, printed = study("status", f"--workdir={workdir}")
    assert code == 0, printed
    assert "pre-training 3/3 | fine-tuning 3/3" in printed
    code, printed = study("report", f"--workdir={workdir}")
    assert code == 0, printed
    report = workdir / "reports/two"
    assert (report / "report.html").exists()
    for table in ("small", "evaluations"):
        assert "bert" in (report / f"tables/{table}.csv").read_text()

    packed = tmp_path / "packed"
    assert study("pack", f"--workdir={workdir}", f"--to={packed}")[0] == 0
    assert not list(packed.rglob("checkpoints"))
    capsys.readouterr()
    in_process.run(signal_to_noise, [str(packed)])
    ranks = capsys.readouterr().out.partition("final from")[2]
    (row,) = [line.split() for line in ranks.splitlines() if line.startswith("BLiMP")]
    assert row[1:6] == ["2x8x1", "6", "steps", "3", "2"]  # shape, budget, systems, evaluations
    code, printed = study("report", f"--workdir={packed}")
    assert code == 0, printed
    for table in ("small", "evaluations"):
        ours, theirs = (x / f"reports/two/tables/{table}.csv" for x in (workdir, packed))
        assert ours.read_bytes() == theirs.read_bytes()
    code, printed = study("run", f"--config={config}", f"--workdir={packed}")
    assert (code, "nothing left" in printed) == (0, True), printed
    assert not (packed / "logs").exists() or not list((packed / "logs").iterdir())


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_family_at_micro(tmp_path: pathlib.Path, wikitext, cache_dir) -> None:
    """configs/studies/family.py of one system: each task and evaluation has a number."""
    sets, own, workdir = tmp_path / "sets", tmp_path / "one.py", tmp_path / "w"
    write_pairs(sets)
    glue = glue_folder.write(tmp_path / "glue")
    (sets / "lambada").mkdir()
    (sets / "lambada/lambada_test.jsonl").write_text('{"text": "bada gedu bada"}\n' * 4)
    (sets / "ud-english-ewt").mkdir()
    words = [("bada", "NOUN", 2), ("gedu", "VERB", 0), ("dodo", "NOUN", 2)]
    rows = [f"{k}\t{w}\t_\t{tag}\t_\t_\t{to}\tx\t_\t_" for k, (w, tag, to) in enumerate(words, 1)]
    for split in ("train", "dev", "test"):
        text = "\n".join([*rows, "", ""])
        (sets / f"ud-english-ewt/x-ud-{split}.conllu").write_text(text * 8)
    own.write_text(f"""
from scalelab.config import files


def get_config():
    family = files.load(files.FOLDER / "studies/family.py")
    given = "corpus=wikitext:{wikitext},data={glue},evaluations={sets},seeds=1"
    config = family.get_config(f"scale=micro,{{given}}")
    del config.stages.flops
    config.stage_order, config.stages.tokens.systems = ("tokens",), ("bert",)
    config.hypotheses = ()
    config.evaluations = ("blimp", "lambada", "probes.pos")
    config.pretrain.tokenizer.vocab_size = 300
    config.pretrain.optim.total_tokens, config.pretrain.optim.warmup_tokens = 2e4, 1e3
    config.pretrain.machine.cache_dir = {str(cache_dir)!r}
    config.pretrain.machine.compile_cache_dir = None
    config.finetune.tasks = ("sst2", "qnli")
    config.finetune.fields += ("batch_size=2", "max_len=16", "epochs=1")
    return config
""")
    for command in ("plan", "run"):
        code, printed = study(command, f"--config={own}", f"--workdir={workdir}")
        assert code == 0, printed
    code, printed = study("report", f"--workdir={workdir}")
    assert code == 0 and (workdir / "reports/family/report.html").exists(), printed
    for table, columns in (
        ("tasks", ["sst2", "qnli"]),
        ("evaluations", ["blimp", "lambada", "probes.pos"]),
    ):
        made = pd.read_csv(workdir / f"reports/family/tables/{table}.csv")
        assert made["system"].tolist() == ["bert"]
        assert made[columns].notna().all(axis=None), made


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_are_one_message(arguments: tuple[str, ...], answers) -> None:
    code, printed = answers[arguments]
    assert code == 2
    assert MISTAKES[arguments] in printed
    assert "Traceback" not in printed
    assert printed.count("error: ") == 1
