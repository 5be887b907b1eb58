"""Installation: `pip install .`, extras: cuda, tpu, test, parity."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "scalelab/__init__.py").read_text())
X86_LINUX = "platform_system == 'Linux' and platform_machine == 'x86_64'"
ELSEWHERE = "platform_system != 'Linux' or platform_machine != 'x86_64'"

setup(
    name="scalelab",
    version=VERSION[1],
    description="Controlled comparison of pre-trained language models at small scale, in JAX",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[
        *find_packages(include=["scalelab", "scalelab.*"]),
        "scalelab.configs",
        "scalelab.configs.studies",
    ],
    package_dir={"scalelab.configs": "configs"},
    entry_points={"console_scripts": ["scalelab = scalelab.__main__:main"]},
    package_data={
        "scalelab": ["py.typed"],
        "scalelab.thesis": ["published/*.csv"],
        "scalelab.lab.show": ["templates/*"],
    },
    install_requires=[
        "absl-py",
        "altair",  # charts of report.html
        "flax>=0.12",
        "huggingface_hub",
        "importlib_resources",  # which tensorflow-datasets needs to prepare, and does not name
        "jax>=0.10",
        "jinja2",
        "matplotlib",
        "ml-collections>=1.0",
        "ml_dtypes",
        "numpy>=2",
        "nupunkt",
        "optax>=0.2.5",
        "orbax-checkpoint>=0.11",
        "pandas>=2.2",
        "pyarrow",
        "safetensors",
        "scipy",
        "tabulate",  # Markdown tables of pandas
        "tensorboardX",
        f"tensorflow-cpu>=2.18; {X86_LINUX}",
        f"tensorflow>=2.18; {ELSEWHERE}",
        "tensorflow-datasets",
        "tokenizers>=0.22",
        "tqdm",
        "transformers>=5",
        "vl-convert-python",  # inlines the charts' library, so that a report needs no network
    ],
    extras_require={
        "cuda": ["jax[cuda]"],
        "tpu": ["jax[tpu]"],
        "test": [
            "basedpyright",
            "hypothesis",
            "ipykernel",
            "nbclient",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "scikit-learn",
            "selenium",
        ],  # fmt: skip
        "parity": ["minicons", "torch==2.13.0"],
    },
)
