"""One map a family, `MAP`: names and config fields, no code; see `scalelab.interop.rows`."""

from scalelab.helpers.names import brief, load_module, module_names
from scalelab.interop.rows import Map


def load(system: str) -> Map:
    """The map of a system.

    Raises:
      ValueError: it has none.
    """
    known = module_names("interop.maps")
    if system not in known:
        raise ValueError(
            f"no map to the classes of transformers for {brief(system)}; there are maps for"
            f" {', '.join(known)}"
        )
    return load_module("interop.maps", system).MAP


def every() -> list[Map]:
    """All maps."""
    return [load(name) for name in module_names("interop.maps")]
