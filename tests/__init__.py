"""A package of its own, so that `tests.support` never means somebody else's top-level `tests`."""
