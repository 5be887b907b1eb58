"""Uploads an export to the Hugging Face hub; makes the fields of its card that the hub reads."""

import pathlib

import huggingface_hub
from huggingface_hub import EvalResult, HfApi, ModelCardData

from scalelab.eval.names import EVALUATIONS
from scalelab.eval.score_names import GLUE_TITLES
from scalelab.helpers.names import prefix_errors
from scalelab.interop import output_folder
from scalelab.lab.load import task_runs
from scalelab.lab.load.task_runs import TaskRuns
from scalelab.records.run_files import RunRecord, TaskResult


def check(name: str) -> None:
    """Raises ValueError for a name that no repository can have, or if no token is there."""
    with prefix_errors(f"--push={name}"):  # the library's errors have a class of their own
        huggingface_hub.utils.validate_repo_id(name)
    if huggingface_hub.get_token() is None:
        raise ValueError(
            f"--push={name}: no token of the Hugging Face hub; run `hf auth login` or set HF_TOKEN"
        )


def push(folder: pathlib.Path, name: str) -> str:
    """Uploads the files of an export to a repository, made if absent; returns its address.

    Raises:
      ValueError: the hub cannot be reached, or refuses.
    """
    files = [*(output_folder.list_exported(folder) or ()), output_folder.MARKER]
    try:
        made = HfApi().create_repo(name, exist_ok=True)
        HfApi().upload_folder(repo_id=made.repo_id, folder_path=folder, allow_patterns=files)
    except Exception as error:  # no network, no permission
        raise ValueError(
            f"--push={name}: the upload failed ({type(error).__name__}: {str(error)[:500]})"
        ) from None
    return str(made)


def card_fields(run: RunRecord, pipeline: str | None, scored: bool) -> str:
    """Returns the YAML head of a model card; it has the run's scores if they are this model's.

    `pipeline` is the hub's name of what the model does; None: none fits.
    """
    scores = _eval_results(run, pipeline or "feature-extraction") if scored else []
    fields = ModelCardData(
        library_name="transformers",
        pipeline_tag=pipeline,
        tags=["scalelab", run.config["system"]],
        model_name=run.folder.absolute().name if scores else None,
        eval_results=scores or None,
    )
    return fields.to_yaml()


def _eval_results(run: RunRecord, pipeline: str) -> list[EvalResult]:
    """Returns the scores of a classifier, or of the fine-tunings and evaluations in tasks/."""
    if isinstance(run.result, TaskResult):
        own = task_runs.read_seed(run.folder, run.result.seed)
        tasks = [TaskRuns(run.result.task, (own,))]
    else:
        folder = run.folder / "tasks"
        tasks = task_runs.read(folder).values() if any(folder.glob("*/seed*")) else ()
    return [_eval_result(task, *key, pipeline) for task in tasks for key in task.keys]


def _eval_result(task: TaskRuns, split: str, metric: str, pipeline: str) -> EvalResult:
    """Returns the mean score over the finished seeds, as a share."""
    values, glue = task.values((split, metric)), task.name in GLUE_TITLES
    evaluation = task.name in EVALUATIONS
    kind = "without fine-tuning" if evaluation else f"mean over {len(values)} seeds of fine-tuning"
    return EvalResult(
        task_type=pipeline if evaluation else "text-classification",
        dataset_type="nyu-mll/glue" if glue else task.name,
        dataset_name=task.title,
        dataset_config=task.name if glue else None,
        dataset_split=split,
        metric_type=metric,
        metric_value=sum(values) / len(values),
        metric_name=f"{metric}, {kind}",
    )
