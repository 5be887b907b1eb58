"""The files of a run folder: records, checkpoints, metrics, clocks, environment."""
