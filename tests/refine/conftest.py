import os

import pytest

from emat.backbone.mobilesam import find_mobilesam
from emat.refine.mobilesam import MobileSAM, load_mobilesam


@pytest.fixture(scope="session")
def mobilesam() -> MobileSAM:
    path = os.environ.get("EMAT_MOBILESAM") or find_mobilesam()
    if path is None:
        pytest.skip("MobileSAM's weights are not here: run `emat weights fetch mobilesam`")
    return load_mobilesam(path)
