"""A tokenizer, and texts as ids."""
