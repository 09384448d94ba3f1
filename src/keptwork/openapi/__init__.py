"""Reads the OpenAPI document of the HTTP API and writes the typed client from it. Pure: a document in, texts out."""
