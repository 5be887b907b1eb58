"""The base config: every other config is a diff of it.

Fields and defaults are in scalelab/config/pretraining.py.
"""

import ml_collections

from scalelab.config import files, pretraining


def get_config() -> ml_collections.ConfigDict:
    """Returns every field of a run, with the base config's value."""
    return files.defaults(pretraining.Config)
