"""DialoGPT: GPT-2 that learns to respond. Zhang, Sun et al. 2020.

  python -m scalelab.train --config=configs/dialogpt.py:corpus=jsonl:FILES --workdir=runs/dialogpt

A line of the files is a dialogue, {"turns": [[speaker, text], ...]}. This makes them from
DialogSum's file:

  jq -c '{turns: [.dialogue | split([10] | implode)[] | split(": ") | [.[0], (.[1:] | join(": "))]
    | select(.[1] != "")]}' dialogsum.train.jsonl

Up to three turns are a text, each ended by the end-of-text token. The loss is that of all turns but
the first. The paper reads whole dialogues, and starts from GPT-2's weights: --init=RUN does so.
Arguments are those of configs/pretrain.py but `system`.
"""

import ml_collections

from scalelab.config import files


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns configs/pretrain.py's GPT-2 with dialogues and the loss of responses."""
    pretrain = files.load(files.FOLDER / "pretrain.py")
    config = pretrain.get_config(f"system=gpt2,{arguments}".rstrip(","))
    config.objective, config.data.format = "response", "dialogue"
    config.format_options.closed = True
    return config
