"""Evaluations: `scalelab eval NAME --init=RUN --workdir=DIR`, also `python -m scalelab.eval NAME`.

NAME is a labeled task, or a program of this package. Tasks are rows of tables in scalelab/tasks;
`program` fine-tunes on them. GLUE's nine tasks are modules here, too. The programs are `glue` (all
nine tasks), `tsv` (a user's own task), `compare` (two systems), `lm`, `word_order` and the
evaluations of `names`. The other files are parts of these programs.
"""
