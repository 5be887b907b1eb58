"""What is expected of each system, as tests/systems/<name>.py declares it in EXPECTED."""

import contextlib
import dataclasses
import functools
import math
import pathlib
import runpy
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from unittest import mock

import numpy as np
import pytest

from scalelab import formats

VOCAB = 97  # the tiny shape's
GUESS, COIN = math.log(VOCAB), math.log(2)  # losses of guesses: of a token, of two classes
CUT = 0.02 * 0.87962566  # standard deviation of a normal of 0.02 cut at two of them
Shape = tuple[int, int, int]  # A, H, L
# Shapes and lengths: heads 1, 3 and 7, one to five layers, the shortest text and a long one.
SHAPES = (((7, 84, 5), 128), ((3, 84, 1), 1), ((1, 208, 2), 7))
Mutation = Callable[[pytest.MonkeyPatch, Any], None]  # changes a system's module
Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Peer:
    """The classes of `transformers` that a system is compared with."""

    pretraining: str
    classifier: str | None
    settings: Callable[[Shape, int], dict[str, Any]]  # shape, positions -> fields of its config
    vocab_size: int = 61
    lowercase: bool = False  # its published tokenizer drops case
    needs_pad: bool = False  # its classifier looks for the last token before padding
    own_test: str | None = None  # compares its pre-training in place of test_parity.py
    objectives: tuple[str, ...] = ()  # compared ones; (): all of `first_losses`
    # Number of layers -> fields of config.json that only this family has.
    options: Callable[[int], dict[str, Any]] = lambda num_layers: {}
    pair: tuple[str, str] = ("", "")  # input and output of its head for pairs: labels, scores
    constant: str | None = None  # parameter that our model has not; 0 where gradients are compared
    # Prepared batch -> inputs of the class, with the label of each place that has scores, or -100.
    # None: a text alone, whose labels are masked tokens, or next ones that the class finds itself.
    inputs: Callable[[Batch], Batch] | None = None
    # Output of the class -> beginning of the path of the same numbers in our model, and the batch's
    # array with the same places. The head scores the last hidden states.
    outputs: Mapping[str, tuple[str, str]] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(("hidden_states", "attentions"), ("", "tokens"))
    )
    # Makes the context in which the class computes in the precision of its parameters.
    exact: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    small: tuple[Shape, int] = ((3, 24, 3), 13)  # shape of the wrong models in test_parity.py
    shapes: tuple[tuple[Shape, int], ...] = SHAPES  # shapes and lengths of test_parity.py
    # Wrong models of its own, beside those that test_parity.py makes of every system.
    mutations: Mapping[str, Mutation] = dataclasses.field(default_factory=dict)

    @property
    def states(self) -> tuple[str, ...]:
        """The outputs that are hidden states."""
        return tuple(name for name in self.outputs if name.endswith("hidden_states"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What the generic tests cannot know of a system."""

    tokenizer: str  # kind
    stddevs: Mapping[str, float]  # end of a parameter's name -> at the start; the first that fits
    largest: float | None = None  # value at the start; None: the normal is not cut
    uniform: bool = False  # kernels are uniform at the start, not normal
    zero_rows: Mapping[str, int] = dataclasses.field(default_factory=dict)  # table -> at the start
    first_losses: Mapping[str, float]  # objective -> mean loss of a guess at the tiny shape
    # (objectives, vocabulary, positions) -> parameters of (12, 768, 12).
    num_parameters: Mapping[tuple[str, int, int], int]
    decayed: frozenset[str]  # parameters at the tiny shape
    body: str = "stack/"  # pattern of the paths of the layers whose kernels are n_model
    num_tanh: int = 0  # hyperbolic tangents of its states beside the layers' activation
    one_softmax: bool = True  # its losses of tokens are cross-entropies of one softmax
    more_parts: bool = False  # matrices beside layers and heads: a projection, a second model
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of the tiny config
    static: bool = False  # states are vectors of tokens: no layers, and no state sees another place
    counted: bool = False  # parameters are tables that no step changes; without counts it guesses
    transformer: bool = True  # its layers have attention, and the config chooses their activation
    all_places: int = 0  # predictions of a place, for a model that sees both sides without masks
    mixed_masks: bool = False  # it sees left, but training has other masks: attention counts whole
    memory_len: int = 0  # states before a segment that its attention reads, at the tiny shape
    overfit_steps: int = 200  # at a rate of 0.01, to learn a tiny batch by heart
    whole: bool = False  # `make test` runs the whole contract on it: one system of each topology
    peer: Peer | str  # or the reason why there is none


def valid_places(batch: Batch, name: str = "tokens") -> np.ndarray:
    """Which places [B, T] of a ragged array are no padding."""
    return np.arange(batch[name].shape[1]) < batch[formats.lengths_name(name)][:, None]


@functools.cache
def get(name: str) -> Expected:
    """Returns the declaration of a system."""
    support = pathlib.Path(__file__).parent
    guest = support / f"guests/{name}.py"
    path = guest if guest.exists() else support.parent / f"systems/{name}.py"
    assert path.exists(), f"{path} has to declare what is expected of the system {name}"
    return runpy.run_path(str(path))["EXPECTED"]


def marked(names: Iterable[str]) -> list[Any]:
    """Returns the names as parameters of a test, marked slow where a system is not `whole`."""
    slow = pytest.mark.slow
    return [name if get(name).whole else pytest.param(name, marks=slow) for name in names]


def kernels_of_layers(stack: str = "stack") -> frozenset[str]:
    """Names of the matrices of a stack of attention and feed-forward layers."""
    attention = {f"{stack}/layer/attention/{n}/kernel" for n in ("query", "key", "value", "out")}
    return frozenset(attention | {f"{stack}/layer/ffn/{n}/kernel" for n in ("inner", "outer")})


def berts_kernels(*more: str) -> frozenset[str]:
    """Names of the matrices of BERT's layers, embeddings and dense layer of the token head."""
    tables = {f"embed/{name}/table" for name in ("tokens", "positions", "segments")}
    return kernels_of_layers() | tables | {"token_head/dense/kernel", *more}


def encoder_settings(shape: Shape, max_len: int) -> dict[str, Any]:
    """Fields of the config of BERT's classes."""
    num_heads, width, num_layers = shape
    given = {"hidden_size": width, "intermediate_size": 4 * width, "hidden_act": "gelu"}
    given |= {"num_hidden_layers": num_layers, "num_attention_heads": num_heads}
    return given | {"max_position_embeddings": max_len}


def decoder_settings(shape: Shape, max_len: int) -> dict[str, Any]:
    """Fields of the config of GPT's classes."""
    num_heads, width, num_layers = shape
    given = {"n_embd": width, "n_layer": num_layers, "n_head": num_heads, "n_positions": max_len}
    return given | dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))


def source_settings(shape: Shape, max_len: int) -> dict[str, Any]:
    """Fields of the config of Marian's and Pegasus' classes."""
    num_heads, width, num_layers = shape
    given: dict[str, Any] = {"d_model": width, "max_position_embeddings": max_len}
    for side in ("encoder", "decoder"):
        given |= {f"{side}_layers": num_layers, f"{side}_attention_heads": num_heads}
        given |= {f"{side}_ffn_dim": 4 * width}
    given |= {"activation_function": "relu", "scale_embedding": True}
    # They give the vector of padding no gradient, but it also starts a target.
    return given | {"pad_token_id": None, "decoder_start_token_id": 0}


def source_inputs(batch: Batch) -> Batch:
    """Inputs of a class whose decoder reads the target behind the start token."""
    return {
        "input_ids": batch["source"],
        "attention_mask": valid_places(batch, "source"),
        "decoder_input_ids": batch["tokens"],
        "labels": np.where(valid_places(batch), batch["targets"], -100),
    }


def exact_sinusoids(kind: str) -> contextlib.AbstractContextManager[Any]:
    """Makes the sinusoids of "transformers.models.KIND", a table of float32, in float64."""
    import torch

    def forward(table: Any, shape: Any, *rest: Any, **given: Any) -> Any:
        with mock.patch.object(torch, "FloatTensor", torch.DoubleTensor):
            return table.create_weight()[: shape[1]]

    return mock.patch(f"transformers.models.{kind}SinusoidalPositionalEmbedding.forward", forward)
