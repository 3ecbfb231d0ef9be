"""The seam between the server's half of a federation and the parties' halves: the messages, and both ends of the link."""
