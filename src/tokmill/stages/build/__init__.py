"""Mixtures, rows and the files that a trainer reads."""
