"""Prediction for a user's own photos: examples in, masks out.

`segmenter` is what people use. It takes an `example` (or all of a data set, by `dataset_examples`), keeps it as
`known_examples` and gives a `prediction` for each of its `photos`; `slides` are predicted in windows. `fitted_file`
saves it to a `.emat` file, which `fitted_checks` examines when it is loaded. `working_sizes` chooses the size at which
photos are learnt from, `refinement_choice` says which classes are refined, and `forecast` what to expect on new photos.
"""
