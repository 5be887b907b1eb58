"""How a family's net is given a labelled task: its input, and the vector that is classified."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """What a system declares of fine-tuning, each with its source in the system's file.

    Attributes:
      begin: texts of the special tokens before the first text.
      between: those between two texts.
      end: those after the last text.
      added_tokens: those of them that pre-training did not have; they get new rows of the
        embedding, in this order, behind the vocabulary.
      reads: "first": the hidden state of the first token is classified; "last": of the last.
      both_orders: whether the two texts of a similarity task go through the net in both orders,
        their vectors added.
    """

    begin: tuple[str, ...]
    between: tuple[str, ...]
    end: tuple[str, ...]
    added_tokens: tuple[str, ...] = ()
    reads: str = "first"
    both_orders: bool = False
