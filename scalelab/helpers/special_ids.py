"""Special tokens by role."""

from collections.abc import Mapping


class SpecialIds(dict[str, int]):
    """Ids of special tokens by role; "start" is that of the role that a system calls `START`."""

    def __init__(self, ids: Mapping[str, int], start: str | None = None) -> None:
        super().__init__(ids)
        if start is not None:
            self["start"] = self[start]

    def __missing__(self, role: str) -> int:
        raise ValueError(
            f"no special token has the role {role!r}, there are {', '.join(self) or 'none'}: add"
            " one to SPECIAL_TOKENS of the system"
        )
