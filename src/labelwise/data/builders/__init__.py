"""Builders of corpora from local files, and converters of downloaded corpora."""
