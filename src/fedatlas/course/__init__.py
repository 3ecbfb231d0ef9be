"""A run in one process: its plan, its rounds, how its models are judged."""
