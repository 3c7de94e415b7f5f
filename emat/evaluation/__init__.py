"""Evaluation: the scores of few-shot tasks, and how certain the scores are.

`run` answers the tasks of all configurations. `evaluator` does so without repeating work, by the published protocol or
as users are answered (`AsFitted`). `metrics` judges and counts the answers, `absence` how well absent classes are told.
`results` makes scores of the counts, and is the file with everything. `thresholds` finds the thresholds that suit a
head.
"""
