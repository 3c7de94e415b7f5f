"""The network: masked attention over support tokens, for every query token."""

from emat.model.checkpoint import load_public
from emat.model.correlation import QueryEncoding, SupportEncoding
from emat.model.network import FORMS, Network, Output, build

__all__ = ["FORMS", "Network", "Output", "QueryEncoding", "SupportEncoding", "build", "load_public"]
