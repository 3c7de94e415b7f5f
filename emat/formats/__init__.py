"""Annotation files, read (and later written) without knowing what data set they belong to."""
