"""Prediction for a user's own photos: examples in, masks out.

`segmenter` is what people use. It takes an `example` (or all of a data set, by `dataset_examples`), keeps it as
`known_examples` and gives a `prediction` for each of its `photos`. `fitted_file` saves it to a `.emat` file, and
`forecast` says what to expect of it.
"""
