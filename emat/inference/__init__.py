"""Prediction for a user's own photos: examples in, masks out.

`segmenter` is what people use. It takes an `example` (or all of a data set, by `dataset_examples`) and keeps it as
`known_examples`; its `predictor` gives a `prediction` for each of the `photos`, of which large ones are cut into
`tiles`. `fitted_file` saves it to a `.emat` file. `forecast` says what to expect on new photos, and what would help.
"""
