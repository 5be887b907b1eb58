"""One map a family, `MAP`: names and config fields, no code; see `scalelab.interop.rows`."""

from scalelab.interop.rows import Map
from scalelab.names import load_module, module_names


def load(system: str) -> Map:
    """The map of a system.

    Raises:
      ValueError: it has none.
    """
    return load_module("interop.maps", system).MAP


def every() -> list[Map]:
    """All maps."""
    return [load(name) for name in module_names("interop.maps")]
