"""Few-shot tasks: which support photos show which classes, and which query is asked about.

`task` is a task as plain data, and a file of tasks. `benchmark` is a data set whose classes are divided into folds.
`sampling` draws evaluation tasks from it by the published protocol, `augmentation` changes them to the augmented
settings, and `sizes` chooses them by the size of their objects. `training_tasks` draws the tasks of training.
"""
