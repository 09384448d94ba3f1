"""Start, watch, and replace worker processes on one host. Commands arrive through the database."""
