"""Networks: what a network method consists of and how it predicts. Nothing here trains."""
