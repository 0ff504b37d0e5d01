"""Reports: charts and one self-contained HTML page per run or study, and comparisons of runs."""
