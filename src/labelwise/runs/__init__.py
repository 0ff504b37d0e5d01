"""Runs: a config in, a folder with model, figures and report out."""
