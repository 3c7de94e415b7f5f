"""Few-shot tasks: which support photos show which classes, and in which query photo the classes are looked for.

`task` is a task as plain data, and a file of tasks. `benchmark` is a data set whose classes are divided into folds, and
knows the sizes of its objects. `sampling` draws evaluation tasks from it by the published protocol and changes them to
the augmented settings. `training_tasks` draws the tasks of training.
"""
