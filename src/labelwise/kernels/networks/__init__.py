"""What networks compute outside of torch."""
