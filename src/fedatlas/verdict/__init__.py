"""The answer to "should we federate": numbers in, a verdict with its sentences out. Pure: no files, no torch of its own."""
