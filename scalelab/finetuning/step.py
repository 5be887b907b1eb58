"""The parts of a fine-tuning: body and head as the model, the head's loss as an objective.

`step.make_train_step` makes the training step of them, as it does for a pre-training. Parameters
are sharded by the same table, batches over the data and fsdp axes.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from flax.typing import ArrayPytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scalelab import sharding
from scalelab.config.finetuning import Head
from scalelab.data.store import Layout
from scalelab.finetuning import methods
from scalelab.nn import axes
from scalelab.nn.heads import BiLSTMHead, ClassHead
from scalelab.nn.stack import INPUTS, STATES
from scalelab.objectives import (
    Batch,
    Objective,
    Pairs,
    Pass,
    Term,
    apply_objectives,
    example_batch,
    named_key,
)
from scalelab.optim import adamw
from scalelab.state import TrainState
from scalelab.step import Blocks, Metrics
from scalelab.systems import Adaptation

Params = dict[str, ArrayPytree]  # "body", "head"
HEAD_INIT = nn.initializers.normal(stddev=0.02)  # as in BERT's, RoBERTa's and GPT's own code
TASK = "task"  # name of the head's objective
DECOMPOSABLE = "decomposable"  # the kind of head that compares the tokens of two texts


@dataclasses.dataclass(frozen=True)
class HeadLoss:
    """The loss of the head, as an objective on a classifier."""

    learner: "FinetuneStep"
    name: ClassVar[str] = TASK
    samples: ClassVar[bool] = False
    predicts: ClassVar[None] = None

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the loss over examples; for tags over words."""
        if self.learner.feature_layers:
            hidden = self.learner.features(ctx.frozen, batch)
            scores = model.classify(hidden, batch, train=ctx.train)
        else:
            scores = model(batch, ctx.hidden, train=ctx.train)
        return {"loss": self.learner.loss(scores, batch)}


@dataclasses.dataclass(frozen=True)
class BodyLoss:
    """An objective of pre-training, on the body of a classifier."""

    objective: Objective
    samples: ClassVar[bool] = False
    predicts: ClassVar[None] = None

    @property
    def name(self) -> str:
        """The objective's name."""
        return self.objective.name

    def losses(self, model: nn.Module, batch: Batch, ctx: Pass) -> Pairs:
        """Returns the objective's losses."""
        return {"loss": self.objective.losses(model.body, batch, ctx)["loss"]}


@dataclasses.dataclass(frozen=True)
class FinetuneStep:
    """A classifier with its optimizer and losses, as pure functions."""

    net: Any  # a Classifier, or what a kind of head makes in its place; unbound
    tx: optax.GradientTransformation  # at learning rate 1
    loss: Callable[[jax.Array, Batch], tuple[jax.Array, jax.Array]]  # the loss of a kind of head
    terms: tuple[Term, ...] = ()  # objectives of pre-training beside the task
    lm_weight: float = 0.0  # their weight, lambda in Radford et al. 2018, equation 5
    # Top layers that the head reads side by side while the model is frozen; None: off.
    feature_layers: int | None = None
    layer_decay: float | None = None  # see optim.adamw.layerwise_factors; None: off
    num_layers: int = 0  # layers of the model, for layer_decay
    method: str | None = None  # see `finetuning.methods`; None: all parameters are trained
    num_steps: int = 0  # steps of the training, for gradual unfreezing
    # Whether the head's first layer starts from the pooler that NSP has trained, as in Devlin et
    # al. 2019, where there is one and it fits.
    pretrained_head: bool = False

    def first_params(self, seed: int, pretrained: ArrayPytree, head: ArrayPytree = None) -> Params:
        """Returns the parameters that a seed begins with.

        Args:
          seed: seed of new parameters.
          pretrained: parameters of the model; None: new ones.
          head: parameters of the head; None: new ones, or the pooler's (`pretrained_head`).
        """
        params = nn.unbox(_init(self, named_key(jax.random.key(seed), "params")))
        if pretrained is not None:
            self.check_start(pretrained)  # an earlier task may have added modules
            params["body"] = _start_from(pretrained, params["body"])
            pooler = pretrained.get("pair_head", {}).get("pooler")
            dense = params.get("head", {}).get("dense")
            # Several layers side by side are wider than the pooler's input.
            fits = jax.tree.map(jnp.shape, pooler) == jax.tree.map(jnp.shape, dense)
            if self.pretrained_head and pooler is not None and fits:
                params["head"] = params["head"] | {"dense": jax.tree.map(jnp.copy, pooler)}
        if head is not None:
            params["head"] = jax.tree.map(jnp.copy, head)
        return params

    def check_start(self, pretrained: ArrayPytree) -> None:
        """Raises ValueError if this model lacks a module that an earlier fine-tuning has added."""
        given = flatten_dict(pretrained)
        if all(methods.ADDED.keys().isdisjoint(path) for path in given):
            return
        made = flatten_dict(jax.eval_shape(_init, self, jax.random.key(0))["body"])
        for part, (what, flags) in methods.ADDED.items():
            for path, old in given.items():
                if part in path and np.shape(nn.unbox(made.get(path))) != old.shape:
                    raise ValueError(f"the initial weights have {what}: set {flags}")

    @property
    def all_terms(self) -> tuple[Term, ...]:
        """The loss of the head, and the objectives of pre-training beside it."""
        beside = (Term(BodyLoss(term.objective), self.lm_weight) for term in self.terms)
        return Term(HeadLoss(self)), *beside

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """`tx`, whose updates `layer_decay` scales and `method` chooses."""
        if self.layer_decay is None and self.method is None:
            return self.tx
        names = axes.names_by_path(jax.eval_shape(self.fresh, jax.random.key(0)))
        embedding = [f"body/{path}" for path in self.net.body.EMBEDDING]

        tx = self.tx
        if self.method == methods.ADAPTERS:
            tx = methods.train_only(tx, lambda path: methods.is_trained(path, names))
        elif self.method == methods.NEW_ENCODER:
            from scalelab.finetuning import new_encoder  # here, as only this method needs it

            tx = new_encoder.train_first_step(tx, names)

        def scale(updates: ArrayPytree, params: ArrayPytree) -> ArrayPytree:
            factors = adamw.layerwise_factors(
                params, names, self.num_layers, self.layer_decay, embedding
            )
            return jax.tree.map(jnp.multiply, updates, factors)

        if self.layer_decay is not None:
            tx = optax.chain(tx, optax.stateless(scale))
        if self.method == methods.UNFREEZING:
            # The token table of a generating model is its output layer: trained from the start.
            last = () if hasattr(self.net, "predict") else embedding
            tx = optax.chain(tx, methods.unfreeze(names, self.num_layers, self.num_steps, last))
        return tx

    def init(self, seed: int, params: Params) -> TrainState:
        """Returns the state of a seed before its first step; it takes over {"body", "head"}."""
        frozen = {"body": params["body"]} if self.feature_layers else {}
        trained = {name: part for name, part in params.items() if name not in frozen}
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=trained,
            opt_state=self.optimizer.init(trained),
            rng=jax.random.key_data(named_key(jax.random.key(seed), "train")),
            frozen=frozen,
        )

    def fresh(self, key: jax.Array) -> Params:
        """Returns new parameters of body and head, boxed with the names of their axes."""
        batch = example_batch(2, (), batch_size=self.net.num_rows)
        if not self.feature_layers:
            given = key, batch, self.terms, Pass(key)
            return dict(self.net.init(*given, method=_classify_and_predict)["params"])
        run_body = lambda net, batch: Pass(key).hidden(net.body, batch)  # noqa: E731
        params = self.net.init(key, batch, method=run_body)["params"]
        hidden = self.features({"body": nn.unbox(params["body"])}, batch)
        made = self.net.init(key, hidden, batch, train=False, method="classify")
        return {"body": params["body"], "head": made["params"]["head"]}

    def shardings(self, mesh: Mesh) -> TrainState:
        """Returns the sharding of each array of the state."""

        def fresh(key: jax.Array) -> TrainState:
            return self.init(0, self.fresh(key))

        return sharding.shardings(jax.eval_shape(fresh, jax.random.key(0)), mesh)

    def features(self, params: Mapping[str, ArrayPytree], batch: Batch) -> jax.Array:
        """Returns the top layers' hidden states side by side, the last layer last: [B R, T, k D].

        Layer 0 is the embeddings, for k = L + 1.

        Args:
          params: with "body".
          batch: tokens [B R, T] and lengths [B R].
        """
        _, found = self.net.body.apply(
            {"params": params["body"]}, batch, train=False, mutable=[STATES, INPUTS]
        )
        layers = [*jax.tree.leaves(found[INPUTS]), *jax.tree.leaves(found[STATES])[0]]
        chosen = layers[-self.feature_layers :]  # pyright: ignore[reportOptionalOperand]
        return jax.lax.stop_gradient(jnp.concatenate(chosen, axis=-1))

    def scores(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the scores [B, ..., C] of a batch, without dropout.

        Args:
          params: "body" and "head".
          batch: tokens [B R, T], lengths [B R] and examples [B R].
        """
        if self.feature_layers:
            hidden = self.features(params, batch)
            given = {"params": {"head": params["head"]}}, hidden, batch
            return self.net.apply(*given, train=False, method="classify")
        return self.net.apply(
            {"params": params}, batch, Pass(jax.random.key(0)).hidden, train=False
        )

    def predict_step(self, params: Params, fixed: Params, batch: Batch) -> jax.Array:
        """Returns scores [B, ..., C] without dropout, or what the model's `predict` makes.

        Args:
          params: the trained parameters.
          fixed: the parameters that are not trained.
          batch: as in `scores`.
        """
        with nn.logical_axis_rules(sharding.activation_rules()):
            if hasattr(self.net, "predict"):
                return self.net.apply({"params": {**params, **fixed}}, batch, method="predict")
            return self.scores({**params, **fixed}, batch)


def _classify_and_predict(
    net: nn.Module, batch: Batch, terms: Sequence[Term], ctx: Pass
) -> tuple[jax.Array, dict[str, Metrics]]:
    """Returns the scores of a bound classifier, and the losses of objectives on its body."""
    scores = net(batch, ctx.hidden, train=ctx.train)
    return scores, apply_objectives(net.body, batch, terms, ctx)


_init = jax.jit(FinetuneStep.fresh, static_argnums=0)


class Compiled(NamedTuple):
    """Blocks of steps on batches of one length."""

    blocks: Blocks
    layout: Layout  # how a batch is packed
    flops: float  # FLOPs of one training step


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of a fine-tuning; blocks are compiled for each length of a batch."""

    # (params, fixed, batch) -> scores [B, ..., C].
    predict: Callable[..., jax.Array]
    shardings: TrainState
    # By the size and the length of a batch, and the most steps of a block.
    compiled: dict[tuple[int, int, int], Compiled] = dataclasses.field(default_factory=dict)

    def place(self, params: Params) -> tuple[Params, Params]:
        """Puts parameters {"body", "head"} on the devices, as (trained, fixed)."""
        trained = {name: params[name] for name in self.shardings.params}
        fixed = {name: params[name] for name in self.shardings.frozen}
        return jax.device_put((trained, fixed), (self.shardings.params, self.shardings.frozen))


@functools.lru_cache(maxsize=8)  # the tasks of a benchmark need few different ones
def compiled(learner: FinetuneStep, mesh: Mesh) -> Program:
    """Returns the program of a learner on the devices of a mesh."""
    placed, replicated = learner.shardings(mesh), NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(
        learner.predict_step,
        in_shardings=(placed.params, placed.frozen, sharding.batch_sharding(mesh)),
        out_shardings=replicated,
    )

    def predict(params: Params, fixed: Params, batch: Batch) -> jax.Array:
        with jax.set_mesh(mesh):  # while it is traced
            return jitted(params, fixed, batch)

    return Program(predict, placed)


def make_head(
    head: Head, num_outputs: int, width: int, adaptation: Adaptation, mixed_layers: int = 0
) -> tuple[nn.Module, str]:
    """Makes a classifier's head; returns it and what it reads, as `Classifier.reads`.

    Args:
      head: the fields of the config.
      num_outputs: C.
      width: of the hidden layer.
      adaptation: the system's; its `activation` is that of the hidden layer.
      mixed_layers: number of layers side by side in a learned sum; 0: the input is one layer.
    """
    if head.kind == DECOMPOSABLE:
        from scalelab.nn.decomposable import DecomposableHead  # other heads do without it

        return DecomposableHead(num_outputs, width, head.dropout_rate), "pair"
    hidden = width if head.kind == "double" else None
    given = num_outputs, hidden, head.dropout_rate, HEAD_INIT, adaptation.activation
    if head.lstm_width:
        return BiLSTMHead(head.lstm_width, ClassHead(*given), mixed_layers), "ends"
    return ClassHead(*given, mixed_layers), adaptation.reads


def _start_from(pretrained: ArrayPytree, made: ArrayPytree) -> ArrayPytree:
    """Returns the model's parameters from pre-training; added rows and modules stay new."""
    given, fresh = flatten_dict(pretrained), flatten_dict(made)

    # A copy: a step takes its state's memory, and other seeds start from the same parameters.
    def take(old: jax.Array, new: jax.Array) -> jax.Array:
        if old.shape == new.shape:
            return jnp.copy(old)
        assert old.shape[1:] == new.shape[1:] and len(old) < len(new), (old.shape, new.shape)
        return jnp.concatenate([old, new[len(old) :]])

    added = {p for p in fresh if not methods.ADDED.keys().isdisjoint(p)} - given.keys()
    return unflatten_dict({p: x if p in added else take(given[p], x) for p, x in fresh.items()})
