"""What surrounds every model: the contract, inputs, calibration, explanations, cards, folders."""
