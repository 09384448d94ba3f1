"""The command line: one file per command group.

A command parses its arguments, calls a service, and prints the result. Decisions are left to the services.
"""
