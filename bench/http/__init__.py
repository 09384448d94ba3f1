"""`keptwork serve` beside bare FastAPI routes that issue the same SQL without the product; and many streams."""
