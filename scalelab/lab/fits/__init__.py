"""Fits of scaling laws: their forms and points, what is certain of them, and what they say."""
