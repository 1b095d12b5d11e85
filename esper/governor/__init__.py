"""Judges the health of every host."""
