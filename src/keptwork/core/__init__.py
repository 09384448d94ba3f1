"""Rules without I/O: lifecycles, decisions, ids, time, money. Imports only `errors` and `outcomes` of the package."""
