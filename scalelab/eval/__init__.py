"""Evaluations: `scalelab eval NAME --init=RUN --workdir=DIR`, also `python -m scalelab.eval NAME`.

NAME is a task, a row of a table in scalelab/tasks (`program` fine-tunes on it; GLUE's nine are
modules here too), or a program of this room: `glue` (all nine tasks), `tsv` (a user's own task),
`compare` (two systems), `lm`, `word_order`, or a yardstick of `names`. The other files are parts of
these programs.
"""
