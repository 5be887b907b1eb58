"""Invented studies: the folders that a study leaves, for tests."""

from pathlib import Path

import task_folders

# Of a study's file, where a test does not say otherwise.
FACTS = {
    "name": "invented", "title": "An invented study", "question": "Which?", "scale": "tiny",
    "matched": "steps", "free": ["system", "shape", "variant", "seed"], "allow": [], "tables": [],
    "figures": [], "hypotheses": [], "tasks": [], "recipe": "thesis", "finetune_seeds": 100,
    "finetune": {}, "comparison": "scalelab.thesis.comparison",
    "departures": {}, "variants": {}, "stages": {"main": {"finetune": "all", "shapes": []}},
}  # fmt: skip

OBJECTIVES = {"bert": "mlm+nsp", "roberta": "mlm", "gpt2": "clm"}


def write_study(workdir: Path, runs: list[dict], config=lambda run: {}, **facts) -> Path:
    """Writes a study's file and the run folders of its pre-trainings.

    Each of `runs` has "system", "shape" as "AxHxL" and "seed"; it may have "variant", "finished"
    (True), "loss" (3.0), "seconds" (100.0), "curve" [(seconds, loss)], and "tasks" and "scratch",
    task -> seed -> wrong predictions, of 60 examples, as for task_folders.write_run. `config` gives
    more fields of a run's config; `facts` are of the study's file, on top.
    """
    planned = []
    for run in runs:
        variant = run.get("variant", "default")
        name = f"{run['system']}-{run['shape']}-{variant}-seed{run['seed']}"
        shape = dict(zip("AHL", map(int, run["shape"].split("x")), strict=True))
        net = dict(zip(("num_heads", "width", "num_layers"), shape.values(), strict=True))
        fields = {"system": run["system"], "seed": run["seed"], "model": net} | config(run)
        fields["objective"] = OBJECTIVES.get(run["system"])
        planned.append(
            {"name": name, "stage": "main", "system": run["system"], "shape": shape,
             "variant": variant, "seed": run["seed"], "config": fields}
        )  # fmt: skip
        folder = workdir / "runs" / name
        if run.get("finished", True):
            clocks = {"tokens": 1000, "flops": 1e9, "seconds": run.get("seconds", 100.0)}
            reached = {"128": {"loss": 9.0}, "512": {"loss": run.get("loss", 3.0)}}
            result = task_folders.result_of(fields, 100, clocks, reached)
            task_folders.write_files(folder, config=fields, result=result)
        if "curve" in run:
            lines = ({"step": i, "tokens": 10 * i, "flops": 1e7 * i, "seconds": s,
                      "eval/loss": loss, "eval/max_len": 128}
                     for i, (s, loss) in enumerate(run["curve"]))  # fmt: skip
            task_folders.write_files(folder, lines, config=fields)
        for part in ("tasks", "scratch"):
            for task, seeds in run.get(part, {}).items():
                for seed, wrong in seeds.items():
                    if task == "mnli" and isinstance(wrong, int):
                        wrong = {"matched": wrong, "mismatched": wrong}
                    task_folders.write_run(
                        folder / part / task, task, seed, wrong, init_digest=name,
                        system=run["system"],
                    )  # fmt: skip
    task_folders.write_files(workdir / "studies", invented=FACTS | {"runs": planned} | facts)
    return workdir
