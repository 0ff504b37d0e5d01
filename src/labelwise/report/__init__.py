"""Reports: charts and one self-contained HTML page of a run, and runs side by side."""
