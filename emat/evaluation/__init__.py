"""How good predictions are: scores of tasks, and how sure they are."""
