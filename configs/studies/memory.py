"""Segment length by memory by layers: who copies a word from before its segment?

  python -m scalelab.study run --config=configs/studies/memory.py:seeds=3 --workdir=DIR

The text is `python -m scalelab.worlds --kind=copies`: every second word is the word 40 places
before it with probability 0.9, else random; each of them is followed by its partner, which any
model learns. Segments have 16 or 32 words, so that no copy is in the segment of its original.
Transformer-XL (Dai et al. 2019, 3.2) sees the original with a memory of 64 words. With a memory of
16, a word in a segment of 16 sees at most 31 words back in one layer and 47 in two: there the path
N x L of 3.2 reaches the originals of a segment's second half. In a segment of 32, one layer sees
the originals of its last words, which allows 1.085 nats. The LSTM carries its state from segment to
segment, but gradients end with the segment.

The best possible losses in nats, over all tokens of a segment but its first:

| segment | original not seen | original seen |
|--:|--:|--:|
| 16 | 1.294 | 0.389 |
| 32 | 1.342 | 0.402 |

So losses compare within one length of segment. `eval.lm` predicts all tokens but the first of a
document (1.382 and 0.413 nats), so that its losses compare between lengths. There a memory may also
be longer than in training:

  python -m scalelab.eval.lm --run=DIR/runs/RUN --corpus=wikitext:WORLD --context=16 \
    --option=memory_len=128
"""

import ml_collections

from scalelab.config import files

TEXT = dict(documents=1920, num_letters=16, lag=40, percent_copied=90, length=320)
SEGMENTS, MEMORIES = (16, 32), (0, 16, 64)
STEP_TOKENS = 1024


def variant(config: ml_collections.ConfigDict, segment: int, memory: int | None = None) -> str:
    """Adds a variant, whose steps have equal tokens, and returns its name."""
    name = f"segment_{segment}" + (f"_memory_{memory}" if memory is not None else "")
    lines = f"short.max_len={segment}", f"short.batch_size={STEP_TOKENS // segment}"
    option = (f"system_options.memory_len={memory}",) if memory is not None else ()
    config.variants[name] = (*lines, *option)
    return name


def get_config(arguments: str = "") -> ml_collections.ConfigDict:
    """Returns the study; takes the arguments of configs/studies/family.py but `scale`."""
    family, quickstart = (
        files.load(files.FOLDER / f"studies/{name}.py") for name in ("family", "quickstart")
    )
    folder = quickstart.make_world(kind="copies", **TEXT)
    own = {"corpus": f"wikitext:{folder}", "data": str(folder), "evaluations": str(folder)}
    config, shape, _ = family.at_synthetic(arguments, tokens="6e5", **own)
    config.evaluations, config.evaluation_data = (), None
    config.name = "memory"
    config.title = "Segment length and memory"
    config.question = "Which memory lets a model copy a word from before its segment?"
    config.pretrain.tokenizer.vocab_size = 377  # all pieces of this text: each word is one
    config.pretrain.eval.num_examples, config.pretrain.eval.every_steps = 3840, 150  # all segments
    grid = tuple(variant(config, segment, memory) for segment in SEGMENTS for memory in MEMORIES)
    config.stages.memory = dict(
        systems=("transformer_xl",), shapes=(shape,), variants=grid, finetune="all"
    )
    config.stages.layers = dict(
        systems=("transformer_xl",), shapes=("2x64x1",), variants=grid[1:3], finetune="all"
    )
    states = tuple(variant(config, segment) for segment in SEGMENTS)
    config.stages.states = dict(systems=("lstm",), shapes=(shape,), variants=states, finetune="all")
    config.stage_order = ("memory", "layers", "states")
    config.tables, config.figures = ("loss",), ("loss_by_tokens",)
    lines = [f"2x64x2 memory_len=64 max_len={n} < 2x64x2 memory_len=0" for n in SEGMENTS]
    lines += [f"transformer_xl 2x64x2 max_len={n} memory_len=64 < lstm" for n in SEGMENTS]
    lines += ["2x64x2 memory_len=16 max_len=16 < 2x64x2 memory_len=0"]
    lines += [
        "2x64x2 memory_len=16 max_len=16 < 2x64x1",
        "2x64x1 memory_len=64 < 2x64x1 memory_len=16",
    ]
    config.hypotheses = tuple((line, "loss") for line in lines)
    return config
