"""The hot loops, one file a kernel; `reference.py` holds a plain twin of each for the tests."""
