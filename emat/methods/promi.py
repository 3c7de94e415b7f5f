"""ProMi (arXiv 2505.12547): one prototype for the class, and a mixture of several for everything else.

A background is not one thing: a mean of sky, grass and road resembles none of them. So the support's background patches
are clustered, and a query's patch is the class where it is nearer to the foreground's prototype than to the nearest of
the background's. The paper starts from boxes and sorts out what is inside them; with masks there is nothing to sort
out. Its number of background prototypes is chosen here on tasks of train-list photos.
"""

import torch.nn.functional as F
from torch import Tensor

from emat.methods.training_free import Patches, PlainPatchMethod, PresenceRule, SupportPatches, cluster

BACKGROUNDS = 4


class ProMi(PlainPatchMethod):
    """A foreground prototype against a mixture of background prototypes."""

    name = "promi"
    sharpness = 15.0
    presence_rule = PresenceRule(level=0.064, sharpness=15.0)

    def scores(self, query: Patches, support: SupportPatches) -> Tensor:
        """Compute how much nearer each patch is to the class than to the nearest part of the background: (T,)."""
        near = query.vectors @ F.normalize(support.foreground.mean(dim=0), dim=0)
        if not len(support.background):
            return near
        mixture = F.normalize(cluster(support.background, BACKGROUNDS), dim=1)
        return near - (query.vectors @ mixture.T).amax(dim=1)
