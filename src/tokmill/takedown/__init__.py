"""Forgetting documents: what it means, its steps, its proof."""
