"""The report of a study, its tables and figures, and the card of a run."""
