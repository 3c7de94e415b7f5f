"""Annotation files, read and written without knowing what data set they belong to."""
