"""Evaluation: the scores of few-shot tasks, and how certain the scores are.

`run` answers the tasks of all configurations, with an `evaluated_method`. `one_pass` does so without repeating work,
and `refined_tasks` refines the masks if that is asked for. `metrics` judges and counts the answers, `summary` makes
scores of the counts, and `results` is the file with everything. `thresholds` finds the thresholds that suit a head.
"""
