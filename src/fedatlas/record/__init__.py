"""The files that a run leaves behind: its folder, its checkpoints, its summary."""
