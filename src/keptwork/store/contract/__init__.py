"""Row types and operations of every database, by noun."""
