"""Few-shot tasks: which support photos show which classes, and which query is asked about."""
