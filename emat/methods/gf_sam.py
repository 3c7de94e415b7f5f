"""GF-SAM (arXiv 2410.06964): points where the class outweighs the background, and masks that agree on them.

1. Positive-negative alignment: a patch is a point if it resembles the class, by the mean and by the best match, more
   than it resembles the background.
2. MobileSAM is asked at each point alone. A mask that holds another point links the two, and linked points are one
   cluster: parts of a thing end up together, whatever the scale at which MobileSAM drew them.
3. Positive gate: a cluster stays if its masks hold more evidence for the class than against it. Overshooting gate: of
   its masks, those stay that are mostly made of patches that are points themselves.

The paper has as many points as pass; here they are spread out and at most MOST_POINTS. Its features are DINOv2's, its
segmenter is SAM's ViT-H.
"""

import numpy as np
import torch
from torch import Tensor

from emat.methods.prompted import PlainPromptedMethod, PromptedQuery, best_answers, joined, spread
from emat.methods.training_free import PresenceRule, SupportPatches, mean_similarity
from emat.refine.mobilesam import Prompt

MOST_POINTS = 64
POINT_MARGIN = 0.05  # of the alignment, above which a patch is a point
OVERSHOOTING = 0.5  # a mask of which a smaller share is points has overshot


class GFSAM(PlainPromptedMethod):
    """Aligned points and clusters of masks."""

    name = "gf-sam"
    presence_rule = PresenceRule(level=0.073, sharpness=26.8)

    def scores(self, query: PromptedQuery, support: SupportPatches) -> Tensor:
        """Compute the alignment of each patch: (T,)."""
        return alignment(query.vectors, support)

    def mask_logits(self, query: PromptedQuery, support: SupportPatches, scores: Tensor) -> Tensor:
        """Ask MobileSAM at the points, and join the masks that pass both gates."""
        values = scores.flatten()
        positive = values > POINT_MARGIN
        points = spread(torch.nonzero(positive).flatten(), values, query.grid, MOST_POINTS)
        if not points:
            return joined(query, torch.empty(0, *query.sheet))
        masks = best_answers(query, query.ask([Prompt(inside=[query.point(index)]) for index in points]))
        covered = query.covered(masks > 0)  # (n, T)
        kept = gated(covered, points, values - POINT_MARGIN, positive)
        return joined(query, masks[kept])


def alignment(vectors: Tensor, support: SupportPatches) -> Tensor:
    """Compute how much more unit vectors (T, D) resemble the class than the background: (T,).

    Resemblance to the class is the mean of the mean and the highest cosine, to the background likewise.
    """
    near, far = (_resemblance(vectors, part) for part in (support.foreground, support.background))
    return near - far


def _resemblance(vectors: Tensor, patches: Tensor) -> Tensor:
    if not len(patches):
        return vectors.new_zeros(len(vectors))
    return (mean_similarity(vectors, patches) + (vectors @ patches.T).amax(dim=1)) / 2


def gated(covered: Tensor, points: list[int], evidence: Tensor, positive: Tensor) -> Tensor:
    """Return which masks pass both gates: (n,) bool.

    Args:
        covered: (n, T) bool, the patches that each mask holds.
        points: The patch that each mask was asked at.
        evidence: (T,), above 0 for the class.
        positive: (T,) bool, the patches that could be points.
    """
    from scipy.sparse.csgraph import connected_components  # takes a while to import, and only this method needs it

    _, labels = connected_components(covered[:, points].cpu().numpy(), directed=True, connection="weak")
    weights = covered.float()
    sizes = weights.sum(dim=1).clamp(min=1)
    precise = (weights @ positive.float()) / sizes >= OVERSHOOTING
    for label in np.unique(labels):
        members = torch.from_numpy(labels == label)
        union = covered[members & precise].any(dim=0)
        if float(evidence[union].sum()) <= 0:
            precise[members] = False
    return precise
