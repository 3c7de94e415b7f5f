"""INSID3 (arXiv 2603.28480): matching forward to the class and backward to the support, then growing by clusters.

1. The query's patches are clustered by their own similarity, so that a cluster is a part of a thing.
2. Backward: a patch is a candidate if the patch of the support that resembles it most is inside the mask.
3. Forward: of the clusters with candidates, the one that resembles the class's prototype most is the seed.
4. A cluster joins by how much it resembles the class, and the seed, in which resemblance to the seed counts because
   parts of one thing resemble each other more than they resemble another photo's.

The paper also removes a bias of position from DINOv3's features, which convolutional features do not have. The distance
at which clusters are cut and the level from which clusters join were chosen on tasks of train-list photos.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.methods.training_free import (
    Patches,
    PlainPatchMethod,
    PresenceRule,
    SupportPatches,
    contrast,
    mean_similarity,
)

CUT = 0.35  # cosine distance, averaged over the pairs of two clusters, from which they stay apart
SEED_SHARE = 0.5  # how much resemblance to the seed counts beside that to the class
FOREGROUND_MARGIN = 0.05


class Insid3(PlainPatchMethod):
    """Forward and backward matching on clusters of the query."""

    name = "insid3"
    sharpness = 15.0
    presence_rule = PresenceRule(level=0.235, sharpness=6.7)

    def scores(self, query: Patches, support: SupportPatches) -> Tensor:
        """Score the patches (T,), those of a cluster alike: nothing scores above 0 without candidates."""
        vectors = query.vectors
        labels = clusters_of(vectors)
        forward = _by_cluster(contrast(vectors, support), labels)
        candidates = _by_cluster(matches_inside(vectors, support).float(), labels)
        if not bool((candidates > 0).any()):
            return forward.clamp(max=0)
        seed = labels == labels[torch.where(candidates > 0, forward, -torch.inf).argmax()]
        to_seed = _by_cluster(mean_similarity(vectors, vectors[seed]), labels)
        to_rest = _by_cluster(mean_similarity(vectors, vectors[~seed]), labels)
        grown = forward + SEED_SHARE * (to_seed - to_rest) - FOREGROUND_MARGIN
        return torch.where(candidates > 0, grown, grown.clamp(max=0))


def matches_inside(vectors: Tensor, support: SupportPatches) -> Tensor:
    """Return for which vectors (T, D) the support's nearest patch is of the class: (T,) bool."""
    return support.chosen[(vectors @ support.vectors.T).argmax(dim=1)]


def clusters_of(vectors: Tensor) -> Tensor:
    """Return the number of the cluster of each unit vector (T, D), by average linkage: (T,)."""
    from scipy.cluster.hierarchy import fcluster, linkage  # takes a while to import, and only this method needs it

    if len(vectors) < 2:
        return torch.zeros(len(vectors), dtype=torch.long)
    tree = linkage(F.normalize(vectors, dim=1).cpu().numpy(), method="average", metric="cosine")
    return torch.from_numpy(fcluster(tree, CUT, criterion="distance") - 1).long().to(vectors.device)


def _by_cluster(values: Tensor, labels: Tensor) -> Tensor:
    """Replace each value (T,) by the mean of its cluster."""
    count = int(labels.max()) + 1
    sums = torch.zeros(count, device=values.device).index_add_(0, labels, values)
    return (sums / torch.bincount(labels, minlength=count))[labels]
