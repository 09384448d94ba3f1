"""Runs handlers in separate processes."""
