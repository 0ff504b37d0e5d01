"""Features: how documents and labels become vectors."""
