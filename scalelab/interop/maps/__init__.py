"""One module for each family; its `MAP` (`interop.mapping`) lists names and config fields."""

from scalelab.helpers.names import load_module, module_names
from scalelab.interop.mapping import Map


def load(system: str) -> Map:
    """Loads the map of a system.

    Raises:
      ValueError: there is none; the message lists the systems with a map.
    """
    systems = module_names("interop.maps")
    if system not in systems:
        raise ValueError(
            f"the system {system!r} has no map to Hugging Face transformers; these have one:"
            f" {', '.join(systems)}"
        )
    return load_module("interop.maps", system).MAP


def load_all() -> list[Map]:
    """Loads the maps that imports choose from."""
    return [made for name in module_names("interop.maps") if (made := load(name)).imports]
