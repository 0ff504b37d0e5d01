"""What commands do with a model or a run."""
