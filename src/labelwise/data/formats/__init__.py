"""One module a file format; `base.py` says what a format is."""
