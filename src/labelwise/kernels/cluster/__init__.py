"""Clustering rows of features."""
