"""Counts behind the metrics."""
