"""How the ResNet methods join shots and ways: log-probabilities in, the answer or the loss out.

Each gives (background, foreground) log-probabilities on a small map. A way is present when its foreground reaches the
threshold anywhere on that map; with several shots each has a vote. A pixel goes to the highest score at the query's
size, where no threshold applies.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.method import Decision, Losses, LossWeights


def merge_ways(ways: Tensor) -> Tensor:
    """(..., N, 2, h, w) log-probabilities of each way -> (..., 1 + N, h, w): the mean background, then the foregrounds.

    >>> merge_ways(torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]).view(2, 2, 1, 1)).flatten()
    tensor([-2., -2., -4.])
    """
    background, foreground = ways.unbind(dim=-3)  # each (..., N, h, w)
    return torch.cat([background.mean(dim=-3, keepdim=True), foreground], dim=-3)


def decide_by_votes(ways: Sequence[Tensor], size: tuple[int, int], threshold: float) -> Decision:
    """Each way's shots (K, 2, h, w) vote on its presence; their log-probabilities are averaged, then ways merged."""
    scores = merge_ways(torch.stack([shots.mean(dim=0) for shots in ways]))
    return decision(
        scores, torch.stack([winning_vote(shots[:, 1].flatten(1).amax(dim=1)) for shots in ways]), size, threshold
    )


def winning_vote(votes: Tensor) -> Tensor:
    """Of K shots' values (K,) the one that half of them reach: it passes a threshold when half of the shots do.

    >>> winning_vote(torch.tensor([0.1, 0.9, 0.6])), winning_vote(torch.tensor([0.1, 0.9]))
    (tensor(0.6000), tensor(0.9000))
    """
    return votes.sort(descending=True).values[(len(votes) + 1) // 2 - 1]


def decision(scores: Tensor, presence: Tensor, size: tuple[int, int], threshold: float) -> Decision:
    """The answer at `size` from merged scores (1 + N, h, w) and each way's presence (N,), both log-probabilities."""
    full = F.interpolate(scores[None].float(), size, mode="bilinear", align_corners=True)[0]  # (1 + N, H, W)
    present = presence >= (math.log(threshold) if threshold > 0 else -math.inf)
    return Decision(
        scores=tuple(presence.exp().tolist()),
        present=tuple(present.tolist()),
        probabilities=full.softmax(dim=0)[1:].cpu().numpy(),
        label_map=full.argmax(dim=0).to(torch.uint8).cpu().numpy(),
    )


def segmentation_loss(scores: Tensor, query_masks: Tensor, weights: LossWeights) -> Losses:
    """Negative log-likelihood of B tasks' merged scores (B, 2, h, w) at the resolution of query_masks (B, H, W)."""
    full = F.interpolate(scores, query_masks.shape[1:], mode="bilinear", align_corners=True)
    masks = F.nll_loss(full, query_masks.long(), full.new_tensor([1.0, weights.foreground]))
    return Losses(masks, None, masks)
