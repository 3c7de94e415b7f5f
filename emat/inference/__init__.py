"""From photos to answers: methods by name, and the segmenter that people use."""
