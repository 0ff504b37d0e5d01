"""What training and prediction will cost: `labelwise plan`."""
