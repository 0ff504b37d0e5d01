"""How good predictions are: the metrics of the field, by one set of written rules (docs/metrics.md)."""
