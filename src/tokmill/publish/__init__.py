"""A run in an object store: upload and fetch."""
