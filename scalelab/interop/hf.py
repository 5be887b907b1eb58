"""Checkpoints to and from the layout of Hugging Face `transformers`.

  python -m scalelab.interop.hf import SOURCE --workdir=DIR
  python -m scalelab.interop.hf export RUN --to=DIR
  python -m scalelab.interop.hf export RUN --push=NAME

SOURCE is a folder with config.json, model.safetensors and a tokenizer, or a name on the hub; DIR
becomes a run folder. RUN is a run folder: a pre-training, or one seed of a fine-tuning. NAME is a
repository of the hub, such as me/bert-2x128; the export is uploaded to it.
"""

import argparse
import pathlib
import tempfile

from scalelab.config import cli
from scalelab.resources import host


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.interop.hf", __doc__)
    commands = made.add_commands()
    text = "a folder in Hugging Face layout -> a run folder"
    into = commands.add_parser("import", help=text, description=text, setup=host.return_freed)
    into.add_argument("source", help="that folder, or a name on the hub, such as gpt2")
    into.add_argument("--workdir", required=True, type=pathlib.Path, help="run folder to make")
    text = "a run folder -> a folder in Hugging Face layout"
    out = commands.add_parser("export", help=text, description=text, setup=host.return_freed)
    out.add_argument("run", type=pathlib.Path, help="the run folder")
    out.add_argument("--to", type=pathlib.Path, help="folder to make; may be left out with --push")
    out.add_argument("--push", metavar="NAME", help="hub repository to upload to; made if absent")
    out.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="dtype of the stored tensors; the last two round",
    )
    out.add_argument(
        "--part",
        help="which model of a run with several, such as generator; default: the one for tasks",
    )
    out.add_argument("--step", type=int, help="checkpoint of a pre-training; default: the newest")
    return made


def main(given: argparse.Namespace) -> None:
    """Imports or exports."""
    if given.command == "import":
        from scalelab.interop import importing

        print("\n".join(importing.run(given.source, given.workdir)))
        return
    from scalelab.interop import exporting, hub

    if given.push is None and given.to is None:
        raise ValueError("--to or --push is missing; see --help")
    if given.push is not None:
        hub.check(given.push)
    with tempfile.TemporaryDirectory() as made:
        to = given.to or pathlib.Path(made) / given.run.absolute().name
        lines = exporting.run(given.run, to, given.dtype, given.part, given.step)
        if given.push is not None:
            first = [] if given.to is None else lines[:1]  # without a folder that is gone
            lines = [*first, f"uploaded to {hub.push(to, given.push)}", *lines[1:]]
    print("\n".join(lines))


if __name__ == "__main__":
    cli.run(main, parser())
