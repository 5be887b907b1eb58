"""A training in progress: opening, restoring, blocks, checkpoints."""
