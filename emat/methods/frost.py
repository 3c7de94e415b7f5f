"""FROST (arXiv 2606.31136): a patch is the class where the class's patches are denser than the background's.

Foreground and background patches of the support are two clouds of points on the unit sphere. The density of each at a
query's patch is a mean of kernels, exp(cosine / bandwidth), and Bayes' rule with equal priors puts the threshold on the
logarithm of their ratio at 0. The bandwidth is read from the support, as the paper asks: here it is the one of a few
under which the support's own patches, each left out of its cloud, are told apart best. The paper's spatial gate is left
out, and its features are DINOv3's.
"""

import torch
from torch import Tensor

from emat.methods.training_free import Patches, PlainPatchMethod, PresenceRule, SupportPatches

BANDWIDTHS = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2)  # of cosines, from nearest neighbours to nearly the means
LARGEST_RATIO = 15.0  # logarithm: more certainty than this says no more


class Frost(PlainPatchMethod):
    """The density ratio of foreground and background."""

    name = "frost"
    sharpness = 1.0  # a score is the logarithm of a ratio already
    presence_rule = PresenceRule(level=2.86, sharpness=0.5)

    def scores(self, query: Patches, support: SupportPatches) -> Tensor:
        """Compute the logarithm of the density ratio at each patch: (T,)."""
        return log_ratio(query.vectors, support, best_bandwidth(support))


def log_ratio(vectors: Tensor, support: SupportPatches, bandwidth: float) -> Tensor:
    """Compute log(foreground density / background density) at unit vectors (T, D), within LARGEST_RATIO of 0.

    Without background patches the ratio is that to a density of which nothing is known, at a cosine of 0.
    """
    foreground = log_density(vectors @ support.foreground.T, bandwidth)
    background = support.background
    in_background = log_density(vectors @ background.T, bandwidth) if len(background) else torch.zeros_like(foreground)
    return (foreground - in_background).clamp(-LARGEST_RATIO, LARGEST_RATIO)


def log_density(cosines: Tensor, bandwidth: float) -> Tensor:
    """Compute the logarithm of the mean kernel over the last axis of cosines (T, n), up to a constant: (T,).

    A cosine of -inf leaves a pair out.
    """
    left = (cosines > -torch.inf).sum(dim=-1).clamp(min=1)
    return torch.logsumexp(cosines / bandwidth, dim=-1) - left.log()


def best_bandwidth(support: SupportPatches) -> float:
    """Return the bandwidth whose ratios fit the support best: the highest likelihood of its patches, each left out.

    Foreground and background count equally. A cloud of one patch says nothing; the bandwidth is then the middle one.
    """
    foreground, background = support.foreground, support.background
    if min(len(foreground), len(background)) < 2:
        return BANDWIDTHS[len(BANDWIDTHS) // 2]
    own_f, own_b = (_without_itself(part @ part.T) for part in (foreground, background))
    between = foreground @ background.T

    def fit(bandwidth: float) -> float:
        inside = log_density(own_f, bandwidth) - log_density(between, bandwidth)
        outside = log_density(own_b, bandwidth) - log_density(between.T, bandwidth)
        return float(sum(torch.nn.functional.logsigmoid(part).mean() for part in (inside, outside)))

    return max(BANDWIDTHS, key=fit)


def _without_itself(cosines: Tensor) -> Tensor:
    return cosines.masked_fill(torch.eye(len(cosines), dtype=torch.bool), -torch.inf)
