"""Workers without a database connection."""
