"""Summaries over seeds, resampling, and intervals of scores, differences and contrasts."""
