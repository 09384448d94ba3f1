"""Crews: several workers share one task."""
