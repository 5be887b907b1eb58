"""Imports from and exports to the layout of Hugging Face `transformers`.

The program is `python -m scalelab.interop.hf --help`. A new family needs only a map in
`maps/<family>.py`, made of the records in `mapping.py`.

A run that is exported and imported again keeps its parameters bit for bit, its tokenizer, frame,
sizes and class names. Lost are progress counts, metrics, corpus, optimizer and earlier checkpoints.
The GPT classifiers of `transformers` have no bias on their scores, so ours moves into the last
norm; one without a safe padding token gets a new token, with a row of zeros in its embedding.

An import keeps what our model computes with, in float32. It loses padding rows of the vocabulary,
parameters that no head uses, a second segment of RoBERTa, and all other fields of config.json. A
body without a head cannot be imported.
"""
