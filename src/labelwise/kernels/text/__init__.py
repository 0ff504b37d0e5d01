"""Words and terms of texts."""
