"""Heads: from a document's vector to scores of labels, and the losses that train them."""
