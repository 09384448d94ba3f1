"""Finds out why something does not move, and repairs it."""
