"""What can be done with a database, one function for each use. Nothing here parses arguments or prints."""
