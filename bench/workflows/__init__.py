"""Durable workflows of five steps, Keptwork beside the systems a user could pick instead, in one run.

The programs of the peers are in their folders under `bench/peers/`, as `workflows.py` or, for Node, `workflows.mjs`;
how they are installed, asked and reported is the same as for their jobs.
"""
