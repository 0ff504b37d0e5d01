"""The hot loops, compiled by Numba, in folders by subject."""
