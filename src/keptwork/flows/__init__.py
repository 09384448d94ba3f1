"""Flow definitions: parsing and checks, ready steps, and what happens next. Pure: no I/O, clock, or database."""
