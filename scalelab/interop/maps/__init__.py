"""One map for each family, `MAP`: names and config fields as data (`interop.mapping`)."""

from scalelab.helpers.names import brief, load_module, module_names
from scalelab.interop.mapping import Map


def load(system: str) -> Map:
    """Loads the map of a system.

    Raises:
      ValueError: there is none.
    """
    known = module_names("interop.maps")
    if system not in known:
        raise ValueError(
            f"no map to the classes of transformers for {brief(system)}; there are maps for"
            f" {', '.join(known)}"
        )
    return load_module("interop.maps", system).MAP


def load_all() -> list[Map]:
    """Loads all maps."""
    return [load(name) for name in module_names("interop.maps")]
