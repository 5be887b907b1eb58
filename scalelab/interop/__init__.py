"""To and from the layout of Hugging Face `transformers`: `python -m scalelab.interop.hf --help`.

  hf.py          the program: import, export
  rows.py        what a map is made of; maps/<family>.py are maps, found by name
  transforms.py  the closed list of what a row may do to an array
  convert.py     arrays through a map, both ways
  tensors.py     safetensors files, read and checked
  settings.py    config.json through a map, both ways
  folder.py      a folder in Hugging Face layout, opened and checked
  texts.py       tokenizers, both ways
  classifiers.py our classifiers beside their classes
  source.py      what an import notes of its source for an export
  target.py      the folder that is made: whole, or not at all
  importing.py   folder -> run folder
  exporting.py   run folder -> folder
  card.py        the model card

Adding a family adds a map and nothing else.
"""
