"""Tools that show a segmenter's masks: Label Studio, CVAT, napari and FiftyOne."""
