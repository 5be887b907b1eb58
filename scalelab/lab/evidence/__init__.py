"""Rows of a study, or of the thesis, with their scores: what tables and statements rest on."""
