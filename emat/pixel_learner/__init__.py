"""The pixel learner: a classifier of single pixels that is trained on a user's own examples.

`features` describes every pixel, `regression` trains the classifier, `mixture` joins its answer with the head's,
`cross_validation` chooses the mixture on photos that were left out, and `learner` is what a segmenter uses.
"""
