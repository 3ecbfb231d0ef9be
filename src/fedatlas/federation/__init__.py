"""The seam between the server's half of a federation and the parties' halves: what crosses, and both ends of it."""
