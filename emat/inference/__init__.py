"""Prediction for a user's own photos: examples in, masks out.

`segmenter` is what people use. It takes each `example`, keeps an `example_set`, and makes `decisions` that depend on
it. It gives a `prediction` for each of the `photos`, of which large ones are cut into `tiles`; `postprocessing` makes
masks of its probability maps. `slides` predicts what is too large for the memory. `fitted_file` saves a segmenter to a
`.emat` file, and `hub` to the Hugging Face hub. `forecast` says what to expect on new photos, `cross_validation` what
the whole pipeline reaches on examples that are left out.
"""
