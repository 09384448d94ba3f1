"""Providers make calls to models: over a network, from recordings, or offline.

Each makes one call and does not retry it. `choose.py` chooses the provider.
"""
