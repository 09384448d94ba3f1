"""Those who make calls to models: over a network, from recordings, or without either.

Each makes one call and tries nothing again. `choice.py` says which of them is used.
"""
