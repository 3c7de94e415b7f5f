"""Training a method's head on any data sets with masks.

`run` is the loop, with the `options` of a run. `data` opens its data sets and makes batches of its tasks, and `step`
trains on one of them. `reporting` says how it goes, and `state` holds the files from which a run continues exactly.
"""
