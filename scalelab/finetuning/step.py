"""The pure functions of fine-tuning: (state, batch) -> (state, metrics), compiled for a mesh.

One program trains one seed or, by `vmap` over all of the state but its step, several: each has its
own parameters, batches, head and dropout. Parameters are sharded by the same table as in training,
batches over the data and fsdp axes.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.typing import ArrayPytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scalelab import sharding
from scalelab.nets.classifier import Classifier
from scalelab.nn import axes
from scalelab.nn.heads import BiLSTMHead, OneLayerHead, TwoLayerHead, WeightedLayers
from scalelab.nn.stack import STATES
from scalelab.objectives import Pass, Term, apply_objectives, example_batch, named_key
from scalelab.optim import adamw
from scalelab.runs import vmapped

Batch = dict[str, jax.Array]
Params = dict[str, ArrayPytree]  # "body", "head"
Metrics = dict[str, tuple[jax.Array, jax.Array]]
HEAD_INIT = nn.initializers.normal(stddev=0.02)  # as in BERT's, RoBERTa's and GPT's own code


@flax.struct.dataclass
class FinetuneState:
    """The state of a fine-tuning; in a program of several seeds all but `step` have an axis K."""

    step: jax.Array  # int32 [], steps taken so far
    params: ArrayPytree  # the trained parameters: {"body", "head"}, or {"head"} on a frozen net
    fixed: ArrayPytree  # the frozen parameters: {}, or {"body"}
    opt_state: ArrayPytree
    rng: jax.Array  # key data of the seed's root key, uint32; each step folds its number in
    best: ArrayPytree  # the parameters with the best dev score, for early stopping; {} without it


@dataclasses.dataclass(frozen=True)
class FinetuneStep:
    """A classifier with its optimizer and losses, as pure functions."""

    net: Classifier  # unbound
    tx: optax.GradientTransformation  # at learning rate 1
    loss: Callable[[jax.Array, Batch], tuple[jax.Array, jax.Array]]  # of a kind of head
    terms: tuple[Term, ...] = ()  # of pre-training, trained beside the task
    lm_weight: float = 0.0  # their weight, lambda in Radford et al. 2018, equation 5
    # Top layers that the head reads side by side while the net is frozen; None: off.
    feature_layers: int | None = None
    layer_decay: float | None = None  # see optim.adamw.layerwise_factors; None: off
    num_layers: int = 0  # of the net, for layer_decay
    # Whether the head's first layer starts from the pooler that NSP has trained, as in Devlin et
    # al. 2019, where there is one and it fits.
    pretrained_head: bool = False
    keep_best: bool = False  # whether the state has room for the parameters with the best dev score

    def first_params(self, seed: int, pretrained: ArrayPytree, head: ArrayPytree = None) -> Params:
        """Returns the parameters that a seed begins with, those given or new ones."""
        params = nn.unbox(_init(self, named_key(jax.random.key(seed), "params")))
        if pretrained is not None:
            params["body"] = _start_from(pretrained, params["body"])
            pooler = pretrained.get("pair_head", {}).get("pooler")
            dense = params["head"].get("dense")
            # Several layers side by side are wider than the pooler's input.
            fits = jax.tree.map(jnp.shape, pooler) == jax.tree.map(jnp.shape, dense)
            if self.pretrained_head and pooler is not None and fits:
                params["head"] = params["head"] | {"dense": jax.tree.map(jnp.copy, pooler)}
        if head is not None:
            params["head"] = jax.tree.map(jnp.copy, head)
        return params

    def init(self, seed: int, params: Params) -> FinetuneState:
        """Returns the state of a seed before its first step; it takes over {"body", "head"}."""
        fixed = {"body": params["body"]} if self.feature_layers else {}
        trained = {name: part for name, part in params.items() if name not in fixed}
        rng = jax.random.key_data(named_key(jax.random.key(seed), "train"))
        best = jax.tree.map(jnp.copy, trained) if self.keep_best else {}
        step = jnp.zeros((), jnp.int32)
        return FinetuneState(step, trained, fixed, self.tx.init(trained), rng, best)

    def fresh(self, key: jax.Array) -> Params:
        """Returns new parameters of body and head, boxed with the names of their axes."""
        batch = example_batch(2, (), batch_size=self.net.num_rows)
        if not self.feature_layers:
            given = key, batch, self.terms, Pass(key)
            return dict(self.net.init(*given, method=_classify_and_predict)["params"])
        run_body = lambda net, batch: Pass(key).hidden(net.body, batch)  # noqa: E731
        params = self.net.init(key, batch, method=run_body)["params"]
        hidden = self._features({"body": nn.unbox(params["body"])}, batch)
        made = self.net.init(key, hidden, batch, train=False, method="classify")
        return {"body": params["body"], "head": made["params"]["head"]}

    def shardings(self, mesh: Mesh) -> FinetuneState:
        """Returns the sharding of each array of the state."""

        def fresh(key: jax.Array) -> FinetuneState:
            return self.init(0, self.fresh(key))

        return sharding.shardings(jax.eval_shape(fresh, jax.random.key(0)), mesh)

    def _features(self, params: Params, batch: Batch) -> jax.Array:
        """Returns the top layers' hidden states side by side, the last layer last: [R, T, k D]."""
        _, states = self.net.body.apply(
            {"params": params["body"]}, batch, train=False, mutable=[STATES]
        )
        (layers,) = jax.tree.leaves(states)
        chosen = layers[-self.feature_layers :]  # pyright: ignore[reportOptionalOperand]
        return jax.lax.stop_gradient(jnp.concatenate(list(chosen), axis=-1))

    def scores(
        self, params: Params, batch: Batch, *, train: bool, rng: jax.Array | None = None
    ) -> tuple[jax.Array, dict[str, Metrics]]:
        """Returns scores [B, ..., C] of a batch, and the terms of the auxiliary objectives."""
        ctx = Pass(jax.random.key(0) if rng is None else rng, train=train)
        rngs = {"dropout": ctx.key("dropout")} if train else {}
        if self.feature_layers:
            hidden = self._features(params, batch)
            given = {"params": {"head": params["head"]}}, hidden, batch
            return self.net.apply(*given, train=train, method="classify", rngs=rngs), {}
        return self.net.apply(
            {"params": params}, batch, self.terms if train else (), ctx,
            method=_classify_and_predict,
            rngs=rngs,
        )  # fmt: skip

    def train_step(
        self, state: FinetuneState, batch: Batch, learning_rate: jax.Array
    ) -> tuple[FinetuneState, Metrics]:
        """Takes one step of one seed.

        Returns:
          The state, and (sum, weight) pairs: "loss" over examples (for tags over words),
          "lm_loss" over tokens, and "grad_norm" and "finite" as in `step.make_train_step`.
        """
        rng = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)

        def loss_fn(params: Params) -> tuple[jax.Array, Metrics]:
            scores, terms = self.scores(params | state.fixed, batch, train=True, rng=rng)
            total, weight = self.loss(scores, batch)
            pairs = {"loss": (total, weight)}
            pairs |= {f"{name}_loss": term["loss"] for name, term in terms.items()}
            beside = [term["loss"][0] / jnp.maximum(term["loss"][1], 1) for term in terms.values()]
            return total / jnp.maximum(weight, 1) + self.lm_weight * sum(beside), pairs

        with nn.logical_axis_rules(sharding.activation_rules()):
            (loss, pairs), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        updates, opt_state = self.tx.update(grads, state.opt_state, state.params)
        if self.layer_decay is not None:
            factors = adamw.layerwise_factors(
                state.params,
                axes.names_by_path(jax.eval_shape(self.fresh, jax.random.key(0))),
                self.num_layers,
                self.layer_decay,
                [f"body/{path}" for path in self.net.body.EMBEDDING],
            )
            updates = jax.tree.map(jnp.multiply, updates, factors)
        params = jax.tree.map(lambda p, u: p + learning_rate * u, state.params, updates)
        unit = jnp.ones((), jnp.float32)
        state = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
        return state, pairs | {"grad_norm": (grad_norm, unit), "finite": (finite * unit, unit)}

    def predict_step(self, params: Params, fixed: Params, batch: Batch) -> jax.Array:
        """Returns scores [B, ..., C] without dropout."""
        with nn.logical_axis_rules(sharding.activation_rules()):
            return self.scores(params | fixed, batch, train=False)[0]


def _classify_and_predict(
    net: Classifier, batch: Batch, terms: Sequence[Term], ctx: Pass
) -> tuple[jax.Array, dict[str, Metrics]]:
    """Returns the scores of a bound classifier, and the losses of objectives on its body."""
    scores = net(batch, ctx, train=ctx.train)
    return scores, apply_objectives(net.body, batch, terms, ctx)


_init = jax.jit(FinetuneStep.fresh, static_argnums=0)


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions of a fine-tuning step."""

    # (state, batch, learning rates) -> (state, metrics); the state is donated.
    train: Callable[..., tuple[FinetuneState, Metrics]]
    # (params, fixed, batch) -> scores [B, ..., C], or [K, B, ..., C] of several seeds.
    predict: Callable[..., jax.Array]
    shardings: FinetuneState
    num_seeds: int  # K

    def place(self, params: Params) -> tuple[Params, Params]:
        """Puts parameters {"body", "head"} on the devices, as (trained, fixed)."""
        trained = {name: params[name] for name in self.shardings.params}
        fixed = {name: params[name] for name in self.shardings.fixed}
        return jax.device_put((trained, fixed), (self.shardings.params, self.shardings.fixed))


@functools.lru_cache(maxsize=8)  # the tasks of a benchmark need few different ones
def compiled(learner: FinetuneStep, mesh: Mesh, num_seeds: int = 1) -> Program:
    """Compiles the step of `num_seeds` seeds for the devices of a mesh."""
    shardings = vmapped.shardings(learner.shardings(mesh), num_seeds)
    replicated = NamedSharding(mesh, PartitionSpec())
    predict = learner.predict_step
    if num_seeds > 1:
        predict = jax.vmap(predict, in_axes=(0, 0, None))
    train = jax.jit(
        vmapped.train_step(learner.train_step, FinetuneState, num_seeds),
        in_shardings=(shardings, sharding.batch_sharding(mesh, num_seeds), replicated),
        out_shardings=(shardings, replicated),
        donate_argnums=0,
    )
    predict = jax.jit(
        predict,
        in_shardings=(shardings.params, shardings.fixed, sharding.batch_sharding(mesh)),
        out_shardings=replicated,
    )
    return Program(_on(mesh, train), _on(mesh, predict), shardings, num_seeds)


def _on(mesh: Mesh, function: Callable[..., ArrayPytree]) -> Callable[..., ArrayPytree]:
    """Lets a compiled function see the mesh while it is traced."""

    def call(*arguments: ArrayPytree) -> ArrayPytree:
        with jax.set_mesh(mesh):
            return function(*arguments)

    return call


def make_head(
    kind: str, num_outputs: int, width: int, dropout_rate: float, activation: str,
    mixed_layers: int = 0, lstm_width: int | None = None,
) -> nn.Module:  # fmt: skip
    """Makes a classifier's head: "double", with a hidden layer of this width, or "single".

    The head reads one vector; with `mixed_layers` a learned mixture of this number of vectors that
    stand side by side; with `lstm_width` the states of a BiLSTM.
    """
    if kind == "double":
        head = TwoLayerHead(num_outputs, width, dropout_rate, HEAD_INIT, activation)
    else:
        head = OneLayerHead(num_outputs, dropout_rate, HEAD_INIT)
    if lstm_width:
        return BiLSTMHead(lstm_width, head)
    return WeightedLayers(mixed_layers, head) if mixed_layers else head


def _start_from(pretrained: ArrayPytree, made: ArrayPytree) -> ArrayPytree:
    """Returns the net's parameters from pre-training; added rows of the embedding stay new."""
    used = {name: pretrained[name] for name in made}

    # A copy: a step takes its state's memory, and other seeds start from the same parameters.
    def take(old: jax.Array, new: jax.Array) -> jax.Array:
        if old.shape == new.shape:
            return jnp.copy(old)
        assert old.shape[1:] == new.shape[1:] and len(old) < len(new), (old.shape, new.shape)
        return jnp.concatenate([old, new[len(old) :]])

    return jax.tree.map(take, used, made)
