"""Training and searching a tree of linear classifiers."""
