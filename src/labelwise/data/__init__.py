"""Data sets: the `Dataset` class, one reader and writer per format, named data sets, builders and statistics."""
