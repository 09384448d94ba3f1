"""Run a program or function in its own process tree, which has limits, can be ended, and never outlives its worker.

    worker ── zygote ── keeper ── leader and all its descendants

The zygote has done the imports, and forks keepers. A keeper watches one tree at a time, and the worker that
requested it. This package does not know jobs or handlers: a program module (see `zygote`) defines what to run.
"""
