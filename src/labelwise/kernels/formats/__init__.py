"""Parsing and printing data files."""
