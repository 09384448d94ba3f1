"""Generate the typed client from the OpenAPI document of the HTTP API.

Input is a document and output is the text of modules; this package reads and writes no files.
"""
