"""What runs, fine-tunings and studies left: read, checked, and packed to be kept."""
