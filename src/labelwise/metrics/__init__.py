"""Evaluation metrics of extreme multi-label classification; their exact rules are in docs/metrics.md."""
