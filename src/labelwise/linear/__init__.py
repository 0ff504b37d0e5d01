"""Trees of linear classifiers: their weights, training, search and explanation."""
