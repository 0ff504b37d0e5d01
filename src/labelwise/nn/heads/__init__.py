"""Heads: vectors to scores and losses."""
