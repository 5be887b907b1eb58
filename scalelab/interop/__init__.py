"""Imports from and exports to the layout of Hugging Face `transformers`.

The program is `python -m scalelab.interop.hf --help`. A new family needs only a map in
`maps/<family>.py`, made of the records in `mapping.py`.

Preserved bit for bit when a checkpoint is imported and exported again: every tensor of its
architecture in its dtype, padding rows and parameters that our net lacks included; the sizes in
config.json; the ids of padding, beginning and end; problem_type; class names. Preserved when a run
is exported and imported again: parameters, tokenizer, frame, sizes, class names.

Lost from a checkpoint: fields of config.json that no net computes with (initializer_range,
task_specific_params, generation settings, ...). Written as `transformers` writes them today: second
copies of a table, position buffers, names `gamma` and `beta`, the body's prefix, shards (one file),
tokenizer files (tokenizer.json). Lost from a run: clocks, metrics, corpus, optimizer, earlier
checkpoints; digits that --dtype rounds away. A GPT classifier without a padding token gets one more
row of zeros in its embedding. A body without a head cannot be imported.
"""
