"""An answer that is a text: a translation, a summary, the answer to a question.

The model is trained on a record's first accepted answer. It decodes greedily, as T5 does for all
tasks but its last summaries and translations (Raffel et al. 2020, 3.1.3), or by the beam search of
`config.num_beams`. An empty text is invalid, which is counted.
"""

import numpy as np
from flax import linen as nn

from scalelab.config.finetuning import FinetuneConfig
from scalelab.finetuning import prompts
from scalelab.finetuning.kinds import WORDS, Decoded
from scalelab.finetuning.text_to_text import TextToText
from scalelab.tasks import text_counts
from scalelab.tasks.examples import Reading, TaskExamples
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task

HEAD, NUM_OUTPUTS = WORDS, None
loss = prompts.loss


def make_net(body: nn.Module, task: Task, reading: Reading, config: FinetuneConfig) -> TextToText:
    """Makes the model of a task."""
    beams = config.num_beams or 1, 1.0 if config.length_penalty is None else config.length_penalty
    end = prompts.end_token(task, reading)
    return TextToText(body, task.answer_len, end, None, reading.start, *beams)


def encode(task: Task, records: Records, reading: Reading, both_orders: bool) -> TaskExamples:
    """Makes the rows of prompts; answers of more than `task.answer_len` tokens are cut.

    Raises:
      ValueError: more than a third of the tokens of the answers are unknown.
    """
    longest, targets = task.answer_len, None
    if records.labels is not None:
        end = prompts.end_token(task, reading)
        first = [text_counts.accepted(label)[0] for label in records.labels]
        own = [[*ids, end][:longest] for ids in prompts.encode_targets(first, reading)]
        targets, tokens = prompts.pad(own, longest), [token for ids in own for token in ids]
        # A third: pieces of spaces and the ends of answers are always known.
        if 3 * (unknown := reading.tokenizer.count_unknown(np.array(tokens))) > len(tokens):
            raise ValueError(
                f"{task.title}: {unknown:,} of {len(tokens):,} tokens of the answers are unknown to"
                " the model's tokenizer: choose a model that knows this language"
            )
    return prompts.encode(task, records, reading, targets, longest)


def decode(
    task: Task, records: Records, made: TaskExamples, outputs: np.ndarray, reading: Reading
) -> Decoded:
    """Returns the texts of tokens, outputs [n, M]; empty ones are invalid."""
    texts = [prompts.text_of(row, task, reading) for row in outputs]
    return Decoded(
        np.array(texts, np.str_), None, {i: "" for i, text in enumerate(texts) if not text}
    )
