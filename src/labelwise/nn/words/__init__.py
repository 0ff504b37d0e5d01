"""Encoders of words."""
