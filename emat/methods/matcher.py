"""Matcher (arXiv 2305.13310): patches matched in both directions become prompts, and the best masks are joined.

1. Forward: each patch of the class is assigned a different patch of the query, so that the sum of cosines is highest.
   Backward: an assigned patch stays if the support's patch that resembles it most is inside the mask.
2. The remaining patches are clustered by position. MobileSAM is asked at every centre, which gives parts and things,
   and at all of them together, which gives the whole.
3. A mask is scored by how many of the matches it holds (coverage), by how much of it is matched (purity) and by how its
   patches resemble the class rather than the background. The best masks are joined.

The paper scores by the earth mover's distance where this uses the mean resemblance, and samples random subsets of
points as further prompts; its features are DINOv2's, its segmenter is SAM's ViT-H.
"""

import torch
from torch import Tensor

from emat.methods.insid3 import matches_inside
from emat.methods.prompted import PlainPromptedMethod, PromptedQuery, best_answers, joined
from emat.methods.training_free import PresenceRule, SupportPatches, cluster, contrast
from emat.refine.mobilesam import Prompt

CENTRES = 8
MOST_MASKS = 5
NEARLY_BEST = 0.7  # masks that score at least this share of the best score are joined


class Matcher(PlainPromptedMethod):
    """Bidirectional matching with prompts."""

    name = "matcher"
    presence_rule = PresenceRule(level=0.119, sharpness=13.9)

    def scores(self, query: PromptedQuery, support: SupportPatches) -> Tensor:
        """Compute how much nearer each patch is to the class than to the background: (T,)."""
        return contrast(query.vectors, support)

    def mask_logits(self, query: PromptedQuery, support: SupportPatches, scores: Tensor) -> Tensor:
        """Match, ask MobileSAM at the matches, and join its best masks."""
        matches = matched_patches(query.vectors, support)
        if not len(matches):
            return joined(query, torch.empty(0, *query.sheet))
        points = [query.point(index) for index in self.centres(query, matches)]
        prompts = [Prompt(inside=[point]) for point in points] + [Prompt(inside=points)] * (len(points) > 1)
        masks = best_answers(query, query.ask(prompts))
        covered = query.covered(masks > 0).float()  # (n, T)
        size = covered.sum(dim=1).clamp(min=1)
        matched = covered[:, matches].sum(dim=1)
        purity, coverage = matched / size, matched / len(matches)
        resemblance = torch.sigmoid(15.0 * (covered @ scores.flatten()) / size)
        quality = (purity * coverage).sqrt() * resemblance
        best = quality.argsort(descending=True)[:MOST_MASKS]
        return joined(query, masks[best[quality[best] >= NEARLY_BEST * quality.max()]])

    def centres(self, query: PromptedQuery, matches: Tensor) -> list[int]:
        """Return the matched patches (indices) that are nearest to the centres of their clusters."""
        cells = torch.stack([matches // query.grid[1], matches % query.grid[1]], dim=1).float()
        nearest = torch.cdist(cluster(cells, CENTRES), cells).argmin(dim=1)
        return list(dict.fromkeys(matches[nearest].tolist()))


def matched_patches(vectors: Tensor, support: SupportPatches) -> Tensor:
    """Return the indices of the query's vectors (T, D) that match the class in both directions, in ascending order."""
    cosines = support.foreground @ vectors.T  # (n, T)
    from scipy.optimize import linear_sum_assignment  # takes a while to import, and only this method needs it

    _, assigned = linear_sum_assignment(cosines.cpu().numpy(), maximize=True)
    forward = torch.from_numpy(assigned).sort().values.to(vectors.device)
    return forward[matches_inside(vectors[forward], support)]
