"""Running something in a process tree of its own that can be limited, ended and never outlives its worker.

    worker ── zygote ── keeper ── what runs, and all it starts

The zygote has imported what is needed and forks; a keeper watches over one tree at a time, and over who asked for it.
Nothing here knows of jobs or handlers: a program (see `zygote`) says what to run.
"""
