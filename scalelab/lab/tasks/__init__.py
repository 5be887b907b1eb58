"""Tables of fine-tunings: a benchmark's, and of two systems side by side."""
