"""Config files, which are in no package: run by their paths."""

import importlib.util
import pathlib
import types

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "configs"


def load(path: pathlib.Path) -> types.ModuleType:
    """Runs a config file, such as FOLDER / "pretrain.py", for its `get_config`.

    Raises:
      ValueError: there is no such file.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"no {path}: start this from a checkout, where configs/ is")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
