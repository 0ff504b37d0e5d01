"""Choosing methods and settings: sweeps and auto."""
