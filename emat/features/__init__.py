"""Features of photos, kept so that each photo goes through the backbone once.

`cache` computes features or returns those that it has, and `stores` keeps them in memory and on disk.
"""

from emat.features.cache import CacheCounts, FeatureCache

__all__ = ["CacheCounts", "FeatureCache"]
