"""Encoders: from a document to a vector."""
