"""What a run leaves in its folder: records, checkpoints, metrics, clocks, environment."""
