"""Few-shot tasks: which support images show which classes, and which query is asked about."""
