"""From a coarse probability map to a crisp mask: along the photo's edges, or with MobileSAM."""
