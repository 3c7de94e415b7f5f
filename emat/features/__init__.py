"""The cache of features: each photo goes through the backbone once, and its features are kept."""

from emat.features.cache import CacheCounts, FeatureCache

__all__ = ["CacheCounts", "FeatureCache"]
