"""Evaluation: the scores of few-shot tasks, and how certain the scores are.

`run` answers the tasks of all configurations. `evaluator` does so without repeating work, and refines the masks if that
is asked for. `metrics` judges and counts the answers. `results` makes scores of the counts, and is the file with
everything. `thresholds` finds the thresholds that suit a head.
"""
