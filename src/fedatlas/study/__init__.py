"""More than one run: seeds, baselines, runs that have to be there; and what a run would cost."""
