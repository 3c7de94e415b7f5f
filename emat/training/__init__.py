"""Training a method's head on any data sets with masks."""
