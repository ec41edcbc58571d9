"""Which lane drafts for which request: policies by name."""
