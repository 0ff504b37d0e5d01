"""The command line: one file a command, thin; knobs are config fields, not flags."""
