"""Hashing labels into buckets, and the search back."""
