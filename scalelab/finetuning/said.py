"""What is said of a fine-tuning: at its start, and below every table that shows it."""

from typing import Any

from scalelab.config import files
from scalelab.config.finetuning import FinetuneConfig, override, resolve, settings
from scalelab.tasks import recipes
from scalelab.tasks.task import remarks as of_data


def facts(run: Any) -> str:
    """Sizes, and how many examples had to be cut.

    Args:
      run: a finetuning.run.TaskRun.
    """
    parts = []
    for name, examples in {"train": run.train, **run.dev, **run.test}.items():
        if examples is not None:
            cut = examples.num_truncated
            parts.append(f"{name} {len(examples):,}" + f" ({cut:,} cut)" * bool(cut))
    return (
        f"{run.task.title}: {', '.join(parts)}; {run.num_steps:,} steps of batch"
        f" {run.config.batch_size}, recipe {run.config.recipe}, from {run.start.label}"
        + f"\n{run.head_said}"
        * bool(run.head_said)
    )


def remarks(run: Any) -> list[str]:
    """What a table must say: of the data, of where the run began, of what the recipe has not.

    Args:
      run: a finetuning.run.TaskRun.
    """
    title, config = run.task.title, run.config
    said = [*of_data(run.task, run.splits), *run.start.remarks]
    said += [run.head_said] if run.head_said else []
    if not config.epochs:
        said.append(f"{title} scored as it was imported, without fine-tuning")
    elif own := beyond_recipe(config, run.task.name):
        fields = ", ".join(f"{name} {_spelt(value)}" for name, value in own.items())
        said.append(f"{title}: other than recipe {config.recipe} has it: {fields}")
    if len(run.train) < len(run.splits.train):
        said.append(
            f"{title} trained on the first {len(run.train):,} of {len(run.splits.train):,} examples"
        )
    cut = {
        name: f"{examples.num_truncated:,} of {len(examples):,} ({name})"
        for name, examples in {"train": run.train, **run.dev}.items()
        if examples is not None and examples.num_truncated
    }
    if cut:
        said.append(f"{title}: cut to {config.max_len} tokens: {', '.join(cut.values())}")
    fixed = {
        "the order of the examples": config.order_seed,
        "head and dropout": config.weights_seed,
    }
    for what, seed in fixed.items():
        if seed is not None:
            said.append(f"{title}: {what} of seed {seed} in all seeds' runs")
    return said


def beyond_recipe(config: FinetuneConfig, task: str) -> dict[str, Any]:
    """Fields that differ from what the recipe has for a task; not those of its grid.

    Not `max_train_examples` and the fixed seeds either, of which a table speaks in words.
    """
    recipe = recipes.get(config.recipe)
    made = files.load(files.FOLDER / "finetune.py")
    values = made.get_config(f"recipe={config.recipe}").to_dict()
    plain = settings(resolve(override(values, recipe.tasks.get(task, {}))))
    spoken = {"max_train_examples", "order_seed", "weights_seed", *recipe.grid}
    spoken |= {name.removeprefix("optim.") for name in recipe.grid}
    return {
        name: value
        for name, value in settings(config).items()
        if name not in spoken and plain[name] != value
    }


def _spelt(value: Any) -> str:
    return "off" if value is None else str(value)
