"""The answer to "should we federate": figures in, a verdict with its sentences out. Pure: no files, no torch."""
