"""The dashboard: web pages that show the state of a tenant, with the actions an operator needs.

The server renders pages from the same services as the API; a small script updates them. All changes go through the API
(`static/act.js`), with the scopes of the key that signed in.
"""
