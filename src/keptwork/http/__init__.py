"""The HTTP API.

Like the command line, it parses and authorizes a request, calls a service, and writes the response.
"""
