"""Ensembles: members, merged labels, combination."""
