"""Logical names of array axes: nets speak these, one table elsewhere maps them to a mesh."""

LAYERS = "layers"  # the stacked axis 0 of every parameter inside the layer stack
VOCAB = "vocab"
POSITIONS = "positions"  # rows of a position table
SEGMENTS = "segments"  # rows of a segment table
WIDTH = "width"
TRANSFORM = "transform"  # the output side of a width-to-width kernel in a head
HEADS = "heads"
HEAD_SIZE = "head_size"
FFN = "ffn"
CLASSES = "classes"
NORM = "norm"  # scales and shifts of normalisation layers
BATCH = "batch"  # activations only
LENGTH = "length"  # activations only

ALL = frozenset(
    (LAYERS, VOCAB, POSITIONS, SEGMENTS, WIDTH, TRANSFORM, HEADS)
    + (HEAD_SIZE, FFN, CLASSES, NORM, BATCH, LENGTH)
)
