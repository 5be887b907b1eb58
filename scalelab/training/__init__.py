"""The parts of a pre-training: start, setup, runs that train together, loop, records."""
