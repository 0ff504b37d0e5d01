"""Codes: ways to make a large label space small, and the way back to labels."""
