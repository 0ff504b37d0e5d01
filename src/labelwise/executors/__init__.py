"""Where independent work runs: in this process, in other processes of this machine, or on a Ray cluster."""
