"""Marks on the parts of a net, by which FLOPs are counted from the traced program.

A mark is a `jax.named_scope`; the innermost one decides. Products without a mark belong to the
head: objectives and classifiers run outside the parts that nets mark.
"""

import contextlib
import re
from collections.abc import Iterable

import jax

BODY, ATTENTION, HEAD, EMBEDDING = "body", "attention", "head", "embedding"
_MARK = re.compile(r"part:(\w+)")
_SHARE = re.compile(r"useful:([\d.e-]+)")


def part(name: str) -> contextlib.AbstractContextManager[object]:
    """Marks what is traced inside as a part of the net."""
    return jax.named_scope(f"part:{name}")


def useful(share: float) -> contextlib.AbstractContextManager[object]:
    """Marks the share of the products inside that the result needs.

    Dense causal attention computes twice the scores that it uses; the literature counts half.
    """
    return jax.named_scope(f"useful:{share!r}")


def innermost(scopes: Iterable[str]) -> tuple[str, float]:
    """Returns the part that scopes name, outermost first, and the product of their shares."""
    found, share = HEAD, 1.0
    for scope in scopes:
        if mark := _MARK.search(scope):
            found = mark[1]
        if mark := _SHARE.search(scope):
            share *= float(mark[1])
    return found, share
