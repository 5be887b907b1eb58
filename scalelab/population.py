"""Pre-trains runs of one shape in one program: they differ in seed, data order, learning rate.

  python -m scalelab.population --config=FILE.py:ARGUMENTS --workdir=DIR --seeds=0,1,2,3
  python -m scalelab.population ... --seeds=0,1 --learning_rates=1e-3,2e-3
  python -m scalelab.population ... --order_seeds=0,1,2,3

DIR/seed0, DIR/seed1, ... (DIR/seed0-order1-rate0.001, ...) are run folders as `scalelab.train`
leaves them with the same numbers; it also continues one of them alone. Start the same command again
to continue what was stopped. A run whose loss is not finite ends by itself, the others go on.

Every seed is trained in every order and at every rate. A seed is of parameters, examples, masks,
dropout and order; with --order_seeds the order has seeds of its own. `seconds` of a run are its
share of the time.
"""

from absl import flags

from scalelab.config import cli
from scalelab.resources import malloc
from scalelab.runs import compatibility

flags.adopt_module_key_flags(cli)
SEEDS = flags.DEFINE_list("seeds", [], "Seeds that train together; by default that of the config.")
RATES = flags.DEFINE_list(
    "learning_rates", [], "Peak learning rates, for each seed; by default that of the config."
)
ORDERS = flags.DEFINE_list(
    "order_seeds", [], "Seeds of the examples' order, for each seed; by default that of the run."
)


def main(argv: list[str]) -> None:
    """Reads the flags and trains."""
    del argv
    malloc.keep()
    workdir = cli.workdir()
    config = cli.read_config()
    runs = compatibility.of(config, workdir, SEEDS.value, RATES.value, ORDERS.value)
    # Imported here, once the flags are known to be right, so that --help and typos answer at once.
    from scalelab.training import loop as train_loop

    train_loop.train(runs)


if __name__ == "__main__":
    cli.run(main)
