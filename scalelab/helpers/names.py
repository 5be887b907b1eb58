"""Finds modules, config files and special tokens by name; parts of messages on names."""

import contextlib
import difflib
import importlib
import importlib.metadata
import pathlib
import pkgutil
import re
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping

FEW = 40  # valid names that one message lists

# The last part of a field, argument or flag -> names that other libraries and papers give it.
SYNONYMS = {
    "learning_rate": "lr",
    "batch_size": "bs batch train_batch_size per_device_train_batch_size",
    "epochs": "epoch num_epochs num_train_epochs",
    "total_epochs": "epoch epochs num_epochs num_train_epochs",
    "total_steps": "steps num_steps max_steps train_steps",
    "total_tokens": "tokens max_tokens",
    "warmup_steps": "warmup num_warmup_steps",
    "warmup_rate": "warmup warmup_ratio warmup_steps num_warmup_steps",
    "max_len": "max_length max_seq_length seq_len seq_length block_size max_position_embeddings",
    "width": "hidden_size d_model n_embd",
    "num_layers": "num_hidden_layers n_layer layers",
    "num_heads": "num_attention_heads n_head heads",
    "shape": "hidden_size num_hidden_layers num_attention_heads width num_layers num_heads",
    "ffn_width": "intermediate_size d_ff",
    "vocab_size": "vocab",
    "dropout_rate": "dropout hidden_dropout_prob",
    "weight_decay": "wd",
    "clip_norm": "max_grad_norm",
    "schedule": "scheduler lr_scheduler_type",
    "activation": "hidden_act activation_function",
    "norm_epsilon": "layer_norm_eps layer_norm_epsilon",
    "mask_rate": "mlm_probability",
    "seed": "random_seed",
    "corpus": "dataset",
    "system": "model",
    "workdir": "output_dir",
}


def nearest(word: str, valid: Iterable[str]) -> str:
    """Says which valid names come closest to `word`.

    Returns:
      A phrase to end an error message with: up to three close names, then the other valid names,
      nearest first. Of more than FEW names, the others are left out.

    >>> nearest("widht", ["width", "num_heads"])
    "did you mean 'width'? valid names: num_heads"
    """
    names = sorted(valid)
    meant = [own for own, others in SYNONYMS.items() if _last_part(word) in others.split()]
    meant.append(_last_part(word))
    close = [name for name in names if _last_part(name) in meant][:3]
    close = close or difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    likely = "did you mean " + " or ".join(map(repr, close)) + "?" if close else ""
    if close and len(names) > FEW:
        return likely
    alike = difflib.get_close_matches(word, names, n=max(len(names), 1), cutoff=0.0)
    others = [name for name in [*alike, *names] if name not in close]
    some = [*dict.fromkeys(others)][:FEW] + ["..."] * (len(names) > FEW)
    listed = "valid names: " + ", ".join(some) if others or not close else ""
    return " ".join(filter(None, (likely, listed)))


def _last_part(name: str) -> str:
    """Returns "learning_rate" of "optim.learning_rate", and of "--learning-rate"."""
    return name.rpartition(".")[2].lstrip("-").replace("-", "_").lower()


def check_names(names: Iterable[str], valid: Collection[str], what: str) -> None:
    """Raises ValueError for a name that is not valid: `what`, the name and the nearest ones."""
    for name in names:
        if name not in valid:
            raise ValueError(f"{what} {name!r}: {nearest(name, valid)}")


def suggest_folder(folder: pathlib.Path, others: Iterable[str] = ()) -> str:
    """Returns "; did you mean 'NAME'?"; "" if the folder exists or nothing is near.

    NAME is that of a folder next to it, or one of `others`.
    """
    if folder.exists():
        return ""
    known = {path.name: path for path in folder.parent.glob("*") if path.is_dir()}
    known |= dict.fromkeys(others)
    close = difflib.get_close_matches(folder.name, known, n=3, cutoff=0.6)
    near = " or ".join(repr(str(known[name] or name)) for name in close)
    return f"; did you mean {near}?" if near else ""


def brief(value: object) -> str:
    """Returns repr(value), shortened beyond 100 characters, for a message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text):,} characters)"


@contextlib.contextmanager
def prefix_errors(where: str) -> Iterator[None]:
    """Context: the message of a ValueError gets `where` and a colon before it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


# Helper modules of a package that cannot be chosen by name.
SHARED = {"formats": ("assembly", "draws", "marks", "pairs"), "objectives": ("xent",)}


PACKAGE = pathlib.Path(__file__).resolve().parents[1]
# An installed package holds the config files; in a checkout they lie beside it.
CONFIGS = next(f for f in (PACKAGE / "configs", PACKAGE.with_name("configs")) if f.is_dir())


def describe_version() -> str:
    """Returns "scalelab 0.1.0", the version that is installed."""
    try:
        return f"scalelab {importlib.metadata.version('scalelab')}"
    except importlib.metadata.PackageNotFoundError:
        return "scalelab (not installed)"


def find_config(name: str) -> pathlib.Path:
    """Returns the config file at a path, or a shipped one by its name, such as "studies/family".

    The path of a shipped file in a checkout, "configs/studies/family.py", is a name too.

    Raises:
      ValueError: there is no such file; the message has the nearest names.
    """
    if (path := pathlib.Path(name)).is_file():
        return path
    short = name.removeprefix("configs/").removesuffix(".py")
    found = {str(p.relative_to(CONFIGS).with_suffix("")): p for p in CONFIGS.rglob("*.py")}
    if short not in found:
        if path.suffix == ".py":  # beside the user's own files
            found |= {str(own): own for own in path.parent.glob("*.py")}
            short = name
        raise ValueError(f"no such config file: {name!r}; {nearest(short, found)}")
    return found[short]


def module_names(group: str) -> list[str]:
    """Lists the public modules of the package `scalelab.<group>`, without those that are SHARED."""
    # The package is not imported for this: it may import JAX, which --help does without.
    package = sys.modules.get(f"scalelab.{group}")
    folders = package.__path__ if package else [str(PACKAGE.joinpath(*group.split(".")))]
    found = sorted(m.name for m in pkgutil.iter_modules(folders) if m.name[0] != "_")
    return [name for name in found if name not in SHARED.get(group, ())]


def load_module(group: str, name: str) -> types.ModuleType:
    """Imports `scalelab.<group>.<name>`.

    Raises:
      ValueError: no such module; the message names the nearest ones.
    """
    check_names([name], module_names(group), f"unknown {group.removesuffix('s')}")
    return importlib.import_module(f"scalelab.{group}.{name}")


class SpecialIds(dict[str, int]):
    """Role -> id of each special token; a missing role raises ValueError.

    If the system has a `START`, the key "start" has the id of that token.
    """

    def __init__(self, ids: Mapping[str, int], start: str | None = None) -> None:
        super().__init__(ids)
        if start is not None:
            self["start"] = self[start]

    def __missing__(self, role: str) -> int:
        roles = ", ".join(dict.fromkeys(re.sub(r"\d+", "N", own) for own in self))
        raise ValueError(
            f"no special token has the role {role!r} (roles of the tokenizer: {roles or 'none'})."
            " With --init the run takes the tokenizer of that run: name another one. Without --init"
            " choose another system, format or objective"
        )
