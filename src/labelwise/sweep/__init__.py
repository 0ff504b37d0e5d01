"""Sweeps: many runs from one study file, in parallel, resumable, with one table of results."""
