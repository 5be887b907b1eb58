"""The scales of every study; a comparison is a file of configs/studies.

Fields and defaults are in scalelab/studies/spec.py and scalelab/records/study_file.py.

  python -m scalelab.study plan --config=configs/studies/thesis_7_5_1.py:scale=tiny --workdir=DIR

Arguments that every study takes, all optional, joined by commas:
  scale    full: exactly the protocol; medium: minutes on a GPU; small: hours on two cores;
           tiny: minutes on two cores
  corpus   as in configs/pretrain.py; without it the built-in one, whatever the scale
  data     folder of the tasks' data (CoLA/, SST-2/, ...); without it TensorFlow Datasets' glue
  seeds    pre-training seeds of each model
  evaluations  folder of the evaluations' data (blimp/, ...), for studies that name evaluations
Every other field: --config.<field>=<value>. A comma inside a path is written twice where a word and
"=" follow it: text:/a/year=1,,month=2/*.txt.

Fields that a scale sets, alike for every study (- is off). Pre-training fields are in
configs/base.py, fine-tuning fields in configs/finetune.py.

  study                          full      medium      small       tiny
  seeds                             1           2          2          2
  matched                       steps      tokens     tokens     tokens
  finetune.recipe              thesis       small      small      small
  finetune.seeds                    1           3          3          2

  pre-training                   full      medium      small       tiny
  tokenizer.vocab_size         30,000       8,192      8,192      2,000
  short.max_len                   128         128        128         64
  long.max_len                    512         512        512        128
  long.example_rate           0.08713         0.1        0.1        0.1
  model.max_len                     512         512        512        128
  short.batch_size                 64          32          8         16
  long.batch_size                  16           8          2          4
  optim.total_epochs               10           -          -          -
  optim.total_tokens                -  16,000,000  1,000,000    100,000
  optim.warmup_steps            1,000           -          -          -
  optim.warmup_tokens               -   1,600,000    100,000     10,000
  optim.learning_rate          0.0001       0.001      0.001      0.004
  eval.every_steps              1,000       1,000        400         20
  eval.num_examples             2,000       1,000        500        200
  machine.checkpoint_every_steps  500       2,000        200         50
  machine.num_checkpoints           2           1          1          1
  machine.log_every_steps          50          10         10         10
  machine.num_workers               2           1          1          1

  fine-tuning                    full      medium      small       tiny
  epochs                            3           3          3          1
  batch_size                       16          32         16         32
  max_len                         512         128        128         64
  lm_weight                       0.5           0          0          0
  max_train_examples                -       5,000      2,500        256
  eval_every_epochs                 1           3          3          1
  optim.learning_rate         0.00002      0.0003     0.0003     0.0003
  optim.warmup_rate                 0         0.1        0.1        0.1

At scale full the built-in corpus gets 20,000 pieces, long.example_rate is 0.10262 for bert (Table
7.1), and a system may declare its own epochs and learning rate. Below full, all systems share one
learning rate. Each study has its own shapes, tasks and variants; the quickstart sets some of the
fields above too. All scales but the quickstart also fine-tune the first seed's model from random
weights, because a verdict asks whether pre-training helped, unless finetune.scratch is False. All
other fields, such as masking and dropout, are the protocol's.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
from ml_collections import config_dict

from scalelab.config import fields, files
from scalelab.helpers import names as names_lib
from scalelab.lab.load import study_runs
from scalelab.records.study_file import FIVE_LARGEST
from scalelab.studies import spec

ARGUMENTS = ("scale", "corpus", "data", "evaluations", "seeds")
GLUE = (*FIVE_LARGEST, "stsb", "mrpc", "rte", "wnli")


@dataclasses.dataclass(frozen=True)
class Scale:
    """The settings of a scale below full; pairs are of the short and the long phase."""

    tokens: float  # the budget of pre-training
    batch_sizes: tuple[int, int]
    learning_rate: str
    eval_every: int  # steps
    eval_examples: int
    checkpoint_every: int  # steps
    finetune_seeds: int
    finetune: tuple[str, ...]  # fields of configs/finetune.py
    vocab_size: int = 8192
    max_len: tuple[int, int] = (128, 512)


SMALLER = {
    "medium": Scale(
        tokens=16e6, batch_sizes=(32, 8), learning_rate="1e-3", eval_every=1000,
        eval_examples=1000, checkpoint_every=2000, finetune_seeds=3,
        finetune=("max_train_examples=5000", "eval_every_epochs=3"),
    ),
    "small": Scale(
        tokens=1e6, batch_sizes=(8, 2), learning_rate="1e-3", eval_every=400,
        eval_examples=500, checkpoint_every=200, finetune_seeds=3,
        finetune=("max_train_examples=2500", "eval_every_epochs=3", "batch_size=16"),
    ),
    "tiny": Scale(
        tokens=1e5, batch_sizes=(16, 4), learning_rate="4e-3", eval_every=20,
        eval_examples=200, checkpoint_every=50, finetune_seeds=2,
        finetune=("max_train_examples=256", "max_len=64", "epochs=1"),
        vocab_size=2000, max_len=(64, 128),
    ),
}  # fmt: skip


def of_scale(shapes: dict[str, tuple[str, ...]], scale: str) -> tuple[str, ...]:
    """Returns a study's shapes at a scale; medium uses small's shapes if it has none of its own."""
    return shapes["small"] if scale == "medium" and scale not in shapes else shapes[scale]


def rows(
    title: str, *, stages: tuple = (), shapes: tuple = (), variants: tuple = ()
) -> dict[str, str | tuple]:
    """Returns a selection of rows for a study's tables.

    Args:
      title: with which the captions of these tables begin.
      stages: names of stages; () selects all, here and below.
      shapes: heads x width x layers, where "*" is any number: "2x*x2".
      variants: names of variants.
    """
    return dict(title=title, stages=stages, shapes=shapes, variants=variants)


def grid(config: ml_collections.ConfigDict, **values: Sequence[Any]) -> tuple[str, ...]:
    """Adds a variant for every combination of some fields' values.

      names = study.grid(config, mask_rate=(0.15, 0.3, 0.4), learning_rate=(1e-3, 4e-3))

    Args:
      config: the study; its `pretrain` and `fields` are final.
      **values: of each field, by its name or by the last part of it, such as learning_rate; an
        option by its whole name, such as objective_options.span_p.

    Returns:
      The keys of the variants, which name folders: by what differs from the base config, such as
      "mask_rate_0p3"; the base config's own values are the variant "default". Reports and
      hypotheses name an arm by its values: "mask_rate=0.3".

    Raises:
      ValueError: no field, or several fields, of such a name; values that are no list; or two
        variants would have one name.
    """
    for name, own in values.items():
        if not isinstance(own, list | tuple):
            raise ValueError(f"grid: {name}={own!r}: expected a list of values, such as ({own!r},)")
    control = fields.flatten(config.pretrain.to_dict()) | fields.parse_fields(config.fields)
    found = [_find_field(name, control) for name in values]
    names = []
    for combination in itertools.product(*values.values()):
        changed = {f: x for f, x in zip(found, combination, strict=True) if x != control.get(f)}
        lines = tuple(f"{field}={value}" for field, value in changed.items())
        name = study_runs.name_variant(lines)
        if name in names:
            raise ValueError(f"grid: two variants are named {name!r}; write them by hand")
        config.variants[name] = lines
        names.append(name)
    return tuple(names)


def _find_field(name: str, control: Mapping[str, Any]) -> str:
    """Returns the dotted name of a science field; `name` may be its last part alone."""
    if name.partition(".")[0] in fields.OWNERS:  # an option, which the expansion checks
        return name
    known = [field for field in control if not field.startswith("machine.")]
    found = [f for f in known if name in (f, f.rpartition(".")[2])]
    if len(found) == 1 or name in found:
        return name if name in found else found[0]
    if found:
        raise ValueError(f"grid: {name} may be {' or '.join(found)}; write **{{{found[0]!r}: ...}}")
    raise ValueError(f"grid: no field {name!r}: {names_lib.nearest(name, known)}")


def parse(arguments: str) -> dict[str, str]:
    """Reads "scale=tiny,data=DIR" with scalelab.config.files.arguments, and checks the scale.

    Raises:
      ValueError: an unknown argument or scale.
    """
    given = files.arguments(arguments, ARGUMENTS, "scale=tiny")
    if given.get("scale", "full") not in ("full", *SMALLER):
        raise ValueError(f"scale {given['scale']!r}: expected one of full, {', '.join(SMALLER)}")
    return given


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns every field of a study, at the scale that the arguments name."""
    given = parse(arguments)
    scale = given.get("scale", "full")
    config = files.defaults(spec.StudySpec)
    config.scale = scale
    corpus = given.get("corpus", "builtin").replace(",", ",,")  # one comma inside a path
    pretrain = files.load(files.FOLDER / "pretrain.py")
    config.pretrain = pretrain.get_config(f"corpus={corpus}")
    config.finetune.data = given.get("data")
    config.evaluation_data = given.get("evaluations")
    config.finetune.scratch = True  # a verdict asks whether pre-training helped
    if scale == "full":  # long examples of all examples in Table 7.1 of the protocol
        config.pretrain.long.example_rate = 0.08713
        config.system_fields.bert = ("long.example_rate=0.10262",)
    else:
        _shrink(config, SMALLER[scale])
    if "seeds" in given:
        if not given["seeds"].isdecimal():
            raise ValueError(f"study argument seeds={given['seeds']!r}: expected a number")
        config.seeds = int(given["seeds"])
    return config


def _shrink(config: ml_collections.ConfigDict, scale: Scale) -> None:
    """Makes a study smaller by the rules above."""
    config.seeds, config.matched = 2, "tokens"
    config.finetune.recipe, config.finetune.seeds = "small", scale.finetune_seeds
    pretrain, optim = config.pretrain, config.pretrain.optim
    pretrain.tokenizer.vocab_size = scale.vocab_size
    pretrain.short.batch_size, pretrain.long.batch_size = scale.batch_sizes
    pretrain.short.max_len, pretrain.long.max_len = scale.max_len
    pretrain.model.max_len = scale.max_len[1]
    optim.total_epochs = config_dict.placeholder(float)
    optim.warmup_steps = config_dict.placeholder(int)
    optim.total_tokens, optim.warmup_tokens = scale.tokens, scale.tokens / 10
    pretrain.eval.every_steps, pretrain.eval.num_examples = scale.eval_every, scale.eval_examples
    pretrain.machine.checkpoint_every_steps = scale.checkpoint_every
    pretrain.machine.num_checkpoints = 1
    pretrain.machine.log_every_steps = 10
    pretrain.machine.num_workers = 1
    config.fields = (f"optim.learning_rate={scale.learning_rate}",)
    config.finetune.fields = scale.finetune
