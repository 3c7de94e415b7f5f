"""What PANet, PFENet, HSNet and ASNet have in common: a ResNet below, and tensors under published names."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from emat.backbone.frozen import Backbone, misfits
from emat.backbone.resnet import ResNet
from emat.errors import EmatError
from emat.method import Features, Method, Preparation

BACKBONE = "backbone"  # what the names of its tensors start with, in published checkpoints as here
CLASSIFIER = "backbone.fc."  # of ImageNet's classes; a checkpoint may carry it, no feature depends on it


class ResNetMethod(Method):
    """A method on a ResNet's maps. The names in its state dict are those of published checkpoints."""

    backbone: ResNet

    def __init__(self, backbone: Backbone, image_size: int | None = None) -> None:
        super().__init__()
        spec = backbone.spec
        if not isinstance(backbone, ResNet) or spec is None:
            given = spec.name if spec else type(backbone).__name__
            raise EmatError(
                f"{self.name} works on the maps of a ResNet's bottlenecks, which {given} does not have; "
                "use the backbone resnet50 or resnet101"
            )
        self.backbone = backbone
        self.preparation = Preparation(image_size or spec.image_size, spec.mean, spec.std)

    def feature_weights(self) -> Mapping[str, Tensor]:
        """The backbone's, under the name of what reads it: methods keep different maps of one ResNet."""
        reader = type(self).features.__qualname__
        return {f"{reader}.{name}": value for name, value in self.backbone.state_dict().items()}

    def trained_weights(self) -> dict[str, Tensor]:
        """All but a frozen backbone's, under the names of published checkpoints."""
        return {name: value for name, value in self.state_dict().items() if self._is_trained(name)}

    def load_trained_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Take `trained_weights`, or a published checkpoint of the method: a frozen backbone's tensors are passed over.

        Nothing is loaded unless every name and shape fits; otherwise an EmatError lists what does not.
        """
        own = self.trained_weights()
        given = {name: value for name, value in tensors.items() if self._is_trained(name)}
        if wrong := misfits(_shapes(given), _shapes(own)):
            raise EmatError(f"these tensors are not a {self.name} on this ResNet: {wrong}")
        self.load_state_dict({name: given[name] for name in own}, strict=False)

    def _is_trained(self, name: str) -> bool:
        if self.recipe.trains_backbone:
            return not name.startswith(CLASSIFIER)
        return not name.startswith(BACKBONE)

    def _maps(self, features: Features) -> tuple[Tensor, ...]:
        """The features in the parameters' own precision: a cache may keep them in half."""
        dtype = self.backbone.conv1.weight.dtype
        return tuple(one.to(dtype) for one in features.tensors)


def mask_at(mask: Tensor, like: Tensor) -> Tensor:
    """A mask (H, W), of any size, resized bilinearly to the map (..., h, w) that it goes with: (h, w)."""
    if mask.ndim != 2 or mask.numel() == 0:
        raise EmatError(f"a support mask must have shape (H, W), this one has {tuple(mask.shape)}")
    covered = (mask > 0).to(like)
    return F.interpolate(covered[None, None], like.shape[-2:], mode="bilinear", align_corners=True)[0, 0]


def _shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}
