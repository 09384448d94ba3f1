"""Flows of a thousand steps that do nothing, Keptwork beside the systems a user could pick instead, in one run.

The programs of the peers are in their folders under `bench/peers/`, as `flows.py`; how they are installed, asked and
reported is the same as for their jobs.
"""
