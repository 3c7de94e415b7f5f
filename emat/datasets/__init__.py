"""Data sets: images, masks as class indices, names of classes, and the lists that cut them into folds."""
