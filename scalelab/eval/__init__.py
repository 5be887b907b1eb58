"""Downstream tasks, one file each: `python -m scalelab.eval.cola --init=RUN --workdir=DIR`.

A task file exports `TASK`, a `scalelab.tasks.task.Task`: where its files are, its columns, labels,
input transformation, metrics and submission file, and the paper that it comes from. Run as a
program, it hands that to `scalelab.finetune`. A new task is a new file: it is found by its name.

Besides, programs of their own: `glue` (all nine tasks), `compare` (two systems), `lm` and
`word_order` (how well a net predicts text); and what these and the tasks are made of.
"""
