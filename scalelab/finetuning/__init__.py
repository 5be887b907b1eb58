"""The parts of a fine-tuning: config, start, prepared task, step, loop, what it leaves."""
