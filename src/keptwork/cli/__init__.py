"""The command line: one file per noun or verb. A command parses, calls and prints; it decides nothing."""
