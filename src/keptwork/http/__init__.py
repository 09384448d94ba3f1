"""The HTTP API: an edge like the command line. It parses, authorises, calls a use-case and prints what came of it."""
