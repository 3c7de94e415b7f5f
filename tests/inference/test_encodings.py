"""Support encodings of every method, taken apart and put together."""

from typing import Any

import numpy as np
import pytest
import torch

from emat.baselines.hyper_correlation import HyperFeatures
from emat.baselines.panet import Sums
from emat.baselines.pfenet import Support
from emat.baselines.prototype import Prototypes
from emat.inference.encodings import KINDS, kind_of, moved_to, pack, unpack
from emat.model import SupportEncoding

ONE, TWO = torch.rand(3), torch.rand(2, 2)
ENCODINGS = [
    SupportEncoding(ONE, TWO, torch.arange(3)),
    Prototypes(ONE, None),
    Prototypes(None, None),
    Sums(ONE, TWO, ONE, TWO),
    Support(ONE, TWO),
    HyperFeatures((ONE, TWO, ONE), torch.ones(4, 4, dtype=torch.bool)),
    HyperFeatures((ONE, TWO, ONE)),
]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda one: type(one).__name__)
def test_an_encoding_survives(encoding: Any) -> None:
    for again in (unpack(kind_of(encoding), pack(encoding)), moved_to(torch.device("cpu"), encoding)):
        assert type(again) is type(encoding)
        assert pack(again).keys() == pack(encoding).keys()
        assert all(torch.equal(value, pack(again)[name]) for name, value in pack(encoding).items())


def test_every_kind_is_tested() -> None:
    assert {type(encoding) for encoding in ENCODINGS} == set(KINDS.values())


def test_a_missing_tensor_is_noticed() -> None:
    tensors = pack(ENCODINGS[0])
    del tensors["kept"]
    with pytest.raises(ValueError, match="no kept"):
        unpack("correlation", tensors)


def test_what_is_no_encoding_cannot_be_kept() -> None:
    from emat.errors import EmatError

    with pytest.raises(EmatError, match="kept as ndarray cannot be saved"):
        kind_of(np.zeros(3))
