"""The processes of a run, through Lightning's Fabric: started by it, or found started by torchrun."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from emat.errors import EmatError
from emat.training.settings import Settings

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def as_started(settings: Settings) -> Settings:
    """`settings` with the devices and nodes that torchrun has started, if it has."""
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return settings
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    return replace(settings, devices=devices, nodes=int(os.environ["WORLD_SIZE"]) // devices)


def launch(settings: Settings) -> "Fabric":
    """Have all processes that `settings` ask for, this one among them."""
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.utilities.exceptions import MisconfigurationException
    except ImportError:
        raise EmatError('training needs Lightning; install it with: pip install "emat[train]"') from None
    try:
        fabric = Fabric(
            accelerator=settings.device,
            devices=settings.devices,
            num_nodes=settings.nodes,
            strategy=settings.strategy,
            precision=settings.precision,  # type: ignore[arg-type]  # checked by the settings
        )
        fabric.launch()
    except (ValueError, RuntimeError, MisconfigurationException) as error:
        raise EmatError(f"this machine cannot train so: {' '.join(str(error).split())}") from None
    return fabric
