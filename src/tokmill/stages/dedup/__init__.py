"""Which documents repeat another."""
