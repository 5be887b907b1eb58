"""One map for each family, `MAP`: names and config fields as data (`interop.mapping`)."""

from scalelab.helpers.names import load_module, module_names
from scalelab.interop.mapping import Map


def load(system: str) -> Map:
    """Loads the map of a system.

    Raises:
      ValueError: there is none; the message names those that there are.
    """
    return load_module("interop.maps", system).MAP


def load_all() -> list[Map]:
    """Loads all maps."""
    return [load(name) for name in module_names("interop.maps")]
