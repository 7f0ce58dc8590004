"""Which documents are drawn, and on which side of a split they are."""
