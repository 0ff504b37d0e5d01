"""Data sets: one `Dataset`, a reader and a writer a format, named sets, builders and statistics."""
