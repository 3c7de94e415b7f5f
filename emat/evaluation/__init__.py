"""How good predictions are: the scores of few-shot tasks, and how certain the scores are."""
