"""The client of the HTTP API: every route as a typed method, asked again where that is safe.

It needs `pip install 'detent[client]'`, and no database.
"""
