"""Runs: from a config to a folder with model, results and report."""
