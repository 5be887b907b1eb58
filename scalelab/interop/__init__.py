"""To and from the layout of Hugging Face `transformers`: `python -m scalelab.interop.hf --help`.

  hf.py          the program: import, export
  rows.py        what a map is made of; maps/<family>.py are maps, found by name
  transforms.py  the closed list of what a row may do to an array
  convert.py     arrays through a map, both ways
  tensors.py     safetensors files, read and checked
  settings.py    config.json through a map, both ways
  folder.py      a folder in Hugging Face layout, opened and checked
  matching.py    which architecture its tensors are of, and which tensor is which
  texts.py       tokenizers, both ways
  classifiers.py our classifiers beside their classes
  source.py      what an import notes of its source for an export
  target.py      the folder that is made: whole, or not at all
  importing.py   folder -> run folder
  exporting.py   run folder -> folder
  card.py        the model card

Adding a family adds a map and nothing else.

What comes back bit by bit. Of a checkpoint of others, imported and exported again: every tensor of
its architecture, in its dtype, padding of the vocabulary and parameters that our net has not
included; the sizes in config.json, the ids of padding, beginning and end, problem_type and the
names of classes. Of a run, exported and imported again: its parameters, the tokenizer's pieces and
frame, sizes, classes.

What does not come back. Of a checkpoint: fields of config.json that neither world's net computes
with (initializer_range, classifier_dropout, task_specific_params, generation settings, ...); of a
checkpoint without a head, that it is called untied; the second copy of a table that is stored under
two names, position buffers, the names `gamma` and `beta`, a missing or superfluous prefix, and a
table under the head's name alone, all of which go out as `transformers` writes them today; shards,
which become one file; the files of the tokenizer, which become tokenizer.json and read text alike.
Of a run: clocks, metrics, corpus, optimizer and earlier checkpoints; with --dtype, the digits that
it rounds away; of a GPT's classifier without padding one more row of the embedding, zeros that
nothing reads.
"""
