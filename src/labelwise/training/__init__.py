"""Training of neural methods: the loop, its parts, and what it trains."""
