"""Label spaces made small: trees, buckets, digits, and the search back to labels."""
