"""Studies of many runs: design, execution, the table of runs, and the analysis."""
