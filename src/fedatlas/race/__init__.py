"""A race of configurations on a user's own rows: tuning, looks with cuts, and an end statement that holds for all of them at once.

Decisions are functions of numbers (`estimates`, `cuts`, `best`, `work`, `course`); the runs behind them stand in a study's table
(`runs`). The test rows of the experiment are read once, after the end statement.
"""
