"""What tests of many folders use."""

from labelwise.testing.require import same_predictions

__all__ = ["Stop", "same_predictions"]


class Stop(Exception):
    """What stops a training or an encoding in the middle, as a kill would."""
