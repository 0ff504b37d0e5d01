"""`labelwise auto`: tries methods from cheap to expensive within a time budget and keeps the best."""
