"""Reads, verifies and seals the event log."""
