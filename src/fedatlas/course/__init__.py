"""A run in one process: its plan, its rounds, and how its models are judged."""
