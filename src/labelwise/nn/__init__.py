"""Networks: encoders, heads, and how they are trained."""
