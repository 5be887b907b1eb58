"""Downstream tasks, one file each: `python -m scalelab.eval.cola --init=RUN --workdir=DIR`.

A task file exports `TASK`, a `scalelab.tasks.task.Task`: where its files are, its columns, labels,
input transformation, metrics and submission file, and the paper that it comes from. Run as a
program, it passes TASK to `scalelab.finetune`. A new task is a new file: it is found by its name.

Other programs are `glue` (all nine tasks), `compare` (two systems), `lm` and `word_order` (how well
a net predicts text). The other files are parts of these programs.
"""
