"""Use cases on a database, one function for each. Nothing here parses arguments or prints."""
