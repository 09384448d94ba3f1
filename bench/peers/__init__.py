"""Keptwork beside the systems a user could pick instead, in one run, each in its best reasonable configuration.

A peer is a folder here: `requirements.txt` (or `package.json`), which the benchmark installs into an environment of its
own, and `program.py`, which speaks the little protocol of `protocol.py`; `workflows.py` speaks that of
`bench/workflows/protocol.py`. Everything else serves all of them alike.
"""
