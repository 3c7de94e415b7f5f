"""Annotation tools that show a segmenter's masks: Label Studio, CVAT and napari."""
