"""The command line: one file per command, thin; parameters are config fields, not flags."""
