"""Training: what methods learn with."""
