"""The dashboard: what happens, to look at in a browser, and the buttons an operator needs.

Pages are made on the server from the same services as the API; a small script keeps them up to date. Whatever they
change, they change through the API (`static/act.js`), with the scopes of the key that signed in.
"""
