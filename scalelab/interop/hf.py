"""Checkpoints to and from the layout of Hugging Face `transformers`.

  python -m scalelab.interop.hf import SOURCE --workdir=DIR
  python -m scalelab.interop.hf export RUN --to=DIR

SOURCE is a folder with config.json, model.safetensors and a tokenizer, or a name on the hub; DIR
becomes a run folder. RUN is a run folder: a pre-training, or one seed of a fine-tuning.
"""

import argparse
import os
import pathlib
import sys
from typing import NoReturn

from scalelab.names import nearest

FAILED = 2
COMMANDS = ("import", "export")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one message."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        _fail(f"{message}; {self.prog} --help says what there is")


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(FAILED)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(
        prog="python -m scalelab.interop.hf",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="{import,export}")
    into = commands.add_parser("import", help="a folder in Hugging Face layout -> a run folder")
    into.add_argument("source", help="that folder, or a name on the hub, such as gpt2")
    into.add_argument("--workdir", required=True, type=pathlib.Path, help="run folder to make")
    out = commands.add_parser("export", help="a run folder -> a folder in Hugging Face layout")
    out.add_argument("run", type=pathlib.Path, help="the run folder")
    out.add_argument("--to", required=True, type=pathlib.Path, help="folder to make")
    out.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "float16"),
        help="of the file: float16 halves and rounds it; once loaded it computes in float32",
    )
    return made


def _is_foreign(error: BaseException) -> bool:
    """Whether an error came from a library below us, not from our words to the user."""
    frame = error.__traceback__
    assert frame is not None
    while frame.tb_next is not None:
        frame = frame.tb_next
    return frame.tb_frame.f_globals.get("__name__", "").split(".")[0] not in (
        "scalelab", "configs", "__main__",
    )  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Reads the command line and does what it says; users' mistakes end in one message."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0][0:1] != "-" and argv[0] not in COMMANDS:
        _fail(f"unknown command {argv[0]!r}: {nearest(argv[0], COMMANDS)}")
    arguments = parser().parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        if arguments.command == "import":
            from scalelab.interop import importing

            said = importing.run(arguments.source, arguments.workdir)
        else:
            from scalelab.interop import exporting

            said = exporting.run(arguments.run, arguments.to, arguments.dtype)
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError) and _is_foreign(error):
            raise
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted; nothing was left behind")
    print("\n".join(said))


if __name__ == "__main__":
    main()
