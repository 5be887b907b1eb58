"""What was held equal: across pre-trainings, across fine-tunings, and with the protocol."""
