"""Command lines of the benchmarks: what is refused, and that a flag wins over --quick."""

import importlib
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny

sys.path.insert(0, str(tiny.ROOT))
from benchmarks import accelerator, side_by_side, start, step  # noqa: E402

PROGRAMS = sorted(
    path.stem
    for path in (tiny.ROOT / "benchmarks").glob("*.py")
    if "__main__" in path.read_text(encoding="utf-8")
)
OF_STEPS = ("step", "profile", "trace")
TESTS = sorted(pathlib.Path(__file__).parent.glob("test_benchmarks*.py"))


def program(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr."""
    out, errors = capsys.readouterr()
    assert not out
    (line,) = errors.splitlines()
    assert line.startswith("error: ")
    return line


def test_these_are_the_programs() -> None:
    assert {"accelerator", "data", "finetune", "products", "start", *OF_STEPS} <= set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_test_runs_every_program_in_quick(name: str) -> None:
    """This is about the tests: each calls main with what a command line gives."""
    texts = [path.read_text(encoding="utf-8") for path in TESTS]
    assert any(re.search(rf"\b{name}\.main\({name}\.parse\(", text) for text in texts)


def wrong() -> Iterator[tuple[str, str, str]]:
    """Program, flag, a pattern of the message."""
    for name in PROGRAMS:
        yield name, "--nonsense=1", "unrecognized arguments: --nonsense=1"
    for name in (*OF_STEPS, "accelerator"):
        for shapes in ("foo", "2x8", "2x8x2,2x0x2", "2x8x2,foo"):
            yield name, f"--shapes={shapes}", "is no shape: expected heads x width x layers"
        yield name, "--shapes=2x7x2", "2 heads do not divide a width of 7"
        yield name, "--shapes=", "expected at least 1, joined by commas, got ''"
    for name in ("finetune", "finetune_kernels", "decode", "population", "start"):
        yield name, "--shape=foo", "'foo' is no shape: expected heads x width x layers"
        yield name, "--shape=2x7x2", "2 heads do not divide a width of 7"
    for name in OF_STEPS:
        yield name, "--systems=brt", "unknown system 'brt': did you mean 'bert'"
        yield name, "--dropout_rate=2", "expected a number of at least 0 and below 1, got '2'"
        yield name, "--dropout_rate=nan", "expected a number of at least 0"
        yield name, "--vocab_size=3", "expected a whole number of at least 16, got '3'"
        yield name, "--length=0", "expected a whole number of at least 8, got '0'"
    yield "step", "--peers=stcok", "unknown peer 'stcok': did you mean 'stock'"
    yield "step", "--steps=0", "at least 1"
    yield "profile", "--parts=dropuot", "unknown part 'dropuot': did you mean 'dropout'"
    yield "profile", "--candidates=fused", "unknown candidate 'fused': did you mean 'fused_qkv'"
    yield "trace", "--top=-1", "at least 0"
    counted = {"products", "cost", "decode", "finetune", "population", *OF_STEPS}
    for name in sorted(counted):
        yield name, "--repeats=0", "--repeats: expected a whole number of at least"
        yield name, "--repeats=two", "--repeats: expected a whole number of at least .* got 'two'"
        yield name, "--threads=0", "--threads: expected a whole number of at least 1, got '0'"
    for name in ("decode", "population", *OF_STEPS):
        yield name, "--batch_size=0", "--batch_size: expected a whole number of at least 1"
    for name in sorted(set(PROGRAMS) - {"accelerator"}):
        yield name, "--json=/no/such/file", "--json: expected a file in a folder that exists"
    yield "cost", "--json=/", "--json: expected a file, not a folder, got '/'"
    yield "cost", "--repeats=1", "at least 2"  # a spread is told
    yield "decode", "--new_tokens=1", "at least 2"  # the time between tokens is told
    yield "decode", "--prompt_len=0", "at least 1"
    yield "finetune", "--task=sst", "unknown task 'sst': did you mean 'sst2'"
    yield "finetune", "--steps=-1", "at least 0"
    yield "finetune", "--seeds_together=0", "at least 1"
    yield "population", "--members=0", "at least 1"
    yield "prepare", "--kind=bytebep", "unknown kind 'bytebep': did you mean 'bytebpe'"
    yield (
        "prepare",
        "--format=doc_sentence",
        "unknown format 'doc_sentence': did you mean 'doc_sentences'",
    )
    yield "prepare", "--num_workers=0", "at least 1"
    yield "products", "--widths=8,x", "expected a whole number of at least 1, got 'x'"
    yield "start", "--repeats=0", "at least 1"
    for name in ("accelerator", "kernels"):
        yield name, "--candidate=fused", "unknown candidate 'fused': did you mean 'fused_attention'"
    yield "kernels", "--device=h1000", "unknown device 'h1000': did you mean 'h100'"
    yield "kernels", "--seeds=0", "at least 1"
    yield "finetune_kernels", "--seeds=1", "at least 2"
    yield "kernels", "--dtype=bfloat", "unknown dtype 'bfloat': did you mean 'bfloat16'"
    for minutes in ("0", "nan", "inf", "soon"):
        yield "accelerator", f"--minutes={minutes}", f"expected a number above 0, got '{minutes}'"
    yield "accelerator", f"--out={__file__}", "expected a folder"
    yield "accelerator", f"--out={__file__}/below", "expected a folder"


@pytest.mark.parametrize(("name", "flag", "said"), list(wrong()))
def test_a_wrong_flag_is_one_message(
    name: str, flag: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program(name).parse(["--quick", flag])
    assert ended.value.code == 2
    assert re.search(said, message(capsys))


def test_a_run_has_its_own_shape(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program("finetune").parse(["--run=RUN", "--shape=2x8x1"])
    assert ended.value.code == 2 and "not allowed with" in message(capsys)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Starts a program as from the shell, in this process; gives its exit code."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    monkeypatch.setattr(side_by_side, "pin", lambda threads: None)
    monkeypatch.setattr(side_by_side.freed_memory, "keep", lambda: None)

    def run(name: str, *argv: str) -> int:
        made = program(name)
        with pytest.raises(SystemExit) as ended:
            side_by_side.start(lambda: made.parse(["--quick", *argv]), made.main)
        return ended.value.code or 0

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("name", "flag", "said"),
    [
        ("cost", "--stage=gird", "unknown stage 'gird': did you mean 'grid'"),
        ("cost", "--config=nope.py", "no nope.py"),
        ("cost", f"--config={tiny.ROOT}/configs/pretrain.py", "pretrain.py is no study"),
        ("cost", f"--config={tiny.ROOT}/configs/studies/thesis_7_5_5.py:scale=huge", "'huge'"),
        ("finetune", "--data=/no/such/folder", "there is no folder /no/such/folder"),
        ("finetune", "--run=/no/such/run", "no run folder '/no/such/run'"),
        ("prepare", "--corpus=foo", "unknown corpus reader 'foo'"),
    ],
)
def test_what_a_flag_names_is_missing(
    name: str, flag: str, said: str, started: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert started(name, flag) == 2
    assert said in message(capsys)


def test_a_training_that_refuses_is_quoted(
    started: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    """By the program that started it, in one line."""
    assert started("start", "--corpus=foo") == 2
    assert "error: unknown corpus reader 'foo'" in message(capsys)
    with pytest.raises(SystemExit, match="Traceback"):  # a fault of ours is shown whole
        start.refuse("Traceback (most recent call last): ...", 1)


def test_an_accelerators_shapes_are_read_before_it_runs(
    tmp_path: pathlib.Path, started: Callable[..., int]
) -> None:
    assert started("accelerator", f"--out={tmp_path}/out", "--shapes=2x8x1,foo") == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_is_the_programs_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = program(name)
    with pytest.raises(SystemExit) as ended:
        made.parse(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: python -m benchmarks.{name} ")
    usage, _, rest = out.partition("\n\n")
    assert rest.startswith(made.__doc__.splitlines()[0])
    described, _, options = rest.partition("\noptions:\n")
    named = set(re.findall(r"\[(--\w+)", described)) | {"--quick"}
    assert named <= set(re.findall(r"^  (--\w+)", options, re.MULTILINE))


@pytest.mark.usefixtures("started")  # which gives signals back
@pytest.mark.parametrize(("flags", "expected"), [([], ["keep"]), (["--default_malloc"], [])])
def test_malloc_is_left_alone_where_that_is_asked_for(
    flags: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(side_by_side.freed_memory, "keep", lambda: told.append("keep"))
    side_by_side.start(lambda: program("step").parse(["--quick", *flags]), lambda _: None)
    assert told == expected


def test_help_of_what_shares_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for name, own, others in (
        ("step", "--peers", ("--parts", "--top")),
        ("profile", "--parts", ("--peers", "--top", "--memory")),
        ("trace", "--top", ("--peers", "--parts", "--memory")),
    ):
        with pytest.raises(SystemExit):
            program(name).parse(["--help"])
        out = capsys.readouterr().out
        assert f"  {own} " in out and "--dropout_rate" in out
        assert not [other for other in others if f"  {other} " in out]


@pytest.mark.parametrize(
    ("name", "field", "value", "quick", "usual"),
    [
        ("step", "shapes", "2x16x1", ["2x8x2"], ["2x128x2", "2x256x9", "7x448x4"]),
        ("step", "peers", "compiled", ["stock", "tuned", "stock_apart"], list(step.PEERS)),
        ("profile", "length", "24", 16, 128),
        ("trace", "batch_size", "6", 4, 64),
        ("decode", "shape", "2x16x1", "2x8x2", "12x768x12"),
        ("decode", "new_tokens", "9", 6, 64),
        ("finetune", "shape", "2x16x2", "2x8x1", "2x128x2"),
        ("finetune", "run", "RUN", None, None),
        ("finetune", "data", "GLUE", None, "../shared/data/glue"),
        ("population", "members", "3", 2, 4),
        ("cost", "repeats", "3", 2, 7),
        ("start", "shape", "2x8x2", "2x16x1", "2x128x2"),
        ("prepare", "vocab_size", "500", 4_000, 30_000),
        ("products", "widths", "16", [8], [128, 256, 448]),
        ("accelerator", "shapes", "2x16x1", ["2x8x1"], accelerator.SHAPES),
        # The usual value is a value like others.
        ("decode", "repeats", "5", 2, 5),
    ],
)
def test_a_flag_wins_over_quick(name: str, field: str, value: str, quick: Any, usual: Any) -> None:
    def read(*argv: str) -> Any:
        return vars(program(name).parse(list(argv)))[field]

    wanted = int(value) if value.isdecimal() else value
    wanted = [wanted] if isinstance(usual, list | tuple) else wanted
    assert read() == usual and read("--quick") == quick
    assert read("--quick", f"--{field}={value}") == wanted
    assert read(f"--{field}={value}", "--quick") == wanted
