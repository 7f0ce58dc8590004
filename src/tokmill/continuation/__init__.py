"""The rest of a run that is under way, after a change of mind."""
