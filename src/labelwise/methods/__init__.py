"""Methods: one file each, all with the contract of `base.Method`."""
