"""Sweeps: many runs from one study file, several at a time, resumable, with one table at the end."""
