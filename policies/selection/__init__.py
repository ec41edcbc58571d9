"""Selection policies: which lane drafts for which request."""
