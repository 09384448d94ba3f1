"""Programs for the repository: generated pages, the client, and measurements. Not part of the package."""
