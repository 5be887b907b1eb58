"""Which architecture of a family the tensors of a checkpoint are of, and which tensor is which."""

import re
from typing import Any

from scalelab.interop import convert, settings
from scalelab.interop.rows import Architecture, Map
from scalelab.interop.tensors import Tensors
from scalelab.interop.transforms import Sizes


def match(
    family: Map, config: dict[str, Any], tensors: Tensors, sizes: Sizes
) -> tuple[Architecture, dict[str, str], dict[str, list[str]]]:
    """Finds the architecture that the tensors are of.

    Returns:
      It; name in the map -> name in the files; and why -> names in the map that are left out.

    Raises:
      ValueError: names on either side have no match.
    """
    candidates = {a: set(convert.names(family.rows(a), sizes)) for a in family.variants}
    known = set().union(*candidates.values(), *family.tied)
    names: dict[str, str] = {}
    for name in tensors.shapes:
        place = convert.canonical(name, family, known)
        if place in names:
            raise ValueError(f"{names[place]} and {name} are the same parameter, stored twice")
        names[place] = name
    ties = _ties(family, config, names)
    here = {n for n in names if n not in ties and not _fits(n, family.buffers)}
    declared = settings.declared_architecture(config)

    def misfit(architecture: Architecture) -> tuple[int, bool]:
        return len(candidates[architecture] ^ here), architecture.name != declared

    best = min(family.variants, key=misfit)
    missing = sorted(candidates[best] - here)
    extra = here - candidates[best]
    unused = {
        why: sorted(n for n in extra if re.fullmatch(pattern, n)) for pattern, why in family.unused
    }
    if best.untied:
        unused["transformers computes with what stands beside it"] = sorted(ties & names.keys())
    unmatched = sorted(names[n] for n in extra.difference(*unused.values()))
    if missing or unmatched:
        raise ValueError(_unmatched(best, missing, unmatched, sizes))
    return best, names, unused


def _ties(family: Map, config: dict[str, Any], names: dict[str, str]) -> set[str]:
    """Names of tensors that are stored besides the parameters; what has two names gets ours."""
    tied = config.get("tie_word_embeddings") is not False
    if tied or not family.tied or not set(family.tied[0]) <= names.keys():
        for name, original in family.tied:  # transformers too takes the one for the other
            if tied and name in names and original not in names:
                names[original] = names.pop(name)
        return {name for name, _ in family.tied}
    for name, original in family.tied[1:]:
        if name not in names and original in names:  # stored once by older versions
            names[name] = names.pop(original)
    return {original for _, original in family.tied[1:]}


def _unmatched(
    architecture: Architecture, missing: list[str], unmatched: list[str], sizes: Sizes
) -> str:
    said = [f"the tensors are not those of a {architecture.name} of {sizes.num_layers} layers"]
    if missing:
        said.append(f"{len(missing)} expected that are not there:\n  " + "\n  ".join(missing))
    if unmatched:
        said.append(f"{len(unmatched)} there that are not expected:\n  " + "\n  ".join(unmatched))
    return "; ".join(said)


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)
