"""Verbs without a recipe: single steps over files, tokens from a listing, snapshots, imports."""
