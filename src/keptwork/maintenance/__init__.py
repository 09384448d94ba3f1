"""Periodic duties, one file each, and backups."""
