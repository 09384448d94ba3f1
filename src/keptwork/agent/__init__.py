"""Decisions of agent jobs that use no I/O, such as what follows an outcome."""
