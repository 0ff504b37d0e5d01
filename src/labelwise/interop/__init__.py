"""Imports files of other tools: configs and saved models."""
