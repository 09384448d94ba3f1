"""Flows: what a file says, which steps are ready, what to do next. Pure: no I/O, no clock, no database."""
