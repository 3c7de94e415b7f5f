"""Few-shot segmentation methods: the interface they share, the registry that lists them, and the methods themselves."""
