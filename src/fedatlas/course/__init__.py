"""The course of a run at the coordinator: its plan, its rounds, and how its models are judged."""
