"""Downstream tasks, one file each: `python -m scalelab.eval.cola --init=RUN --workdir=DIR`.

A task file exports `TASK`, a `scalelab.eval.task.Task`: where its files are, its columns, labels,
input transformation, metrics and submission file, and the paper that it comes from. Run as a
program, it hands that to `scalelab.finetune`. A new task is a new file: it is found by its name.
"""
