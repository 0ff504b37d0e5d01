"""Imports files of other tools: configs today, saved models later."""
