"""The ids of special tokens by role."""

from collections.abc import Mapping


class SpecialIds(dict[str, int]):
    """Role -> id of each special token; a missing role raises ValueError.

    If the system has a `START`, the key "start" has the id of that token.
    """

    def __init__(self, ids: Mapping[str, int], start: str | None = None) -> None:
        super().__init__(ids)
        if start is not None:
            self["start"] = self[start]

    def __missing__(self, role: str) -> int:
        raise ValueError(
            f"no special token has the role {role!r} (roles: {', '.join(self) or 'none'}): add one"
            " to SPECIAL_TOKENS of the system"
        )
