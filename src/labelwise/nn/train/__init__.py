"""The training loop and what it needs; never imported to predict."""
