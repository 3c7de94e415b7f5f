"""Whitened prototypes (arXiv 2605.22492): prototypes in a space in which all directions vary equally.

A few directions in which all patches of photos vary, whatever they show, decide most cosines. PCA whitening of the
support's patches takes that away: vectors are centred, turned to their principal directions and divided by the standard
deviation along each. Then foreground and background prototypes are compared as usual. The paper whitens with hundreds
of photos; one support has few patches, so only COMPONENTS directions are kept and small deviations are raised by
SHRINKAGE.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.methods.training_free import Patches, PlainPatchMethod, PresenceRule, SupportPatches, contrast

COMPONENTS = 64
SHRINKAGE = 0.1  # of the largest variance, added to every one


class WhitenedPrototype(PlainPatchMethod):
    """Prototypes after PCA whitening."""

    name = "whitened"
    sharpness = 6.0
    presence_rule = PresenceRule(level=0.433, sharpness=4.1)

    def scores(self, query: Patches, support: SupportPatches) -> Tensor:
        """Compute how much nearer each whitened patch is to the class than to the background: (T,)."""
        mean, directions = whitening(support.vectors)
        prototypes = F.normalize((support.vectors - mean) @ directions, dim=1)
        seen = F.normalize((query.vectors - mean) @ directions, dim=1)
        return contrast(seen, SupportPatches(prototypes, support.inside, support.outside))


def whitening(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) of vectors (n, D), and the directions (D, k) that whiten what is left of them."""
    mean = vectors.mean(dim=0)
    centred = vectors - mean
    # The products of the vectors are a smaller matrix than their covariance, with the same eigenvalues.
    values, mixtures = torch.linalg.eigh(centred @ centred.T)  # ascending
    kept = min(COMPONENTS, *vectors.shape)
    values, mixtures = values[-kept:].clamp(min=1e-12), mixtures[:, -kept:]
    directions = centred.T @ mixtures / values.sqrt()  # (D, k), of length 1
    return mean, directions * (len(vectors) / (values + SHRINKAGE * values[-1])).sqrt()
