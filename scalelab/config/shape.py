"""The shape of a net: attention heads A, width H, layers L; and its size N."""

from typing import NamedTuple


class Shape(NamedTuple):
    """Attention heads, width and layers, written "2x128x2" in this order."""

    num_heads: int
    width: int
    num_layers: int

    @property
    def n_model(self) -> int:
        """The protocol's size N = 12 L H^2."""
        return 12 * self.num_layers * self.width**2

    def __str__(self) -> str:
        return f"{self.num_heads}x{self.width}x{self.num_layers}"
