import os

import pytest

from emat.refine.mobilesam import MobileSAM, find_mobilesam, load_mobilesam


@pytest.fixture(scope="session")
def mobilesam() -> MobileSAM:
    path = os.environ.get("EMAT_MOBILESAM") or find_mobilesam()
    if path is None:
        pytest.skip("MobileSAM's weights are not here: run `emat weights fetch mobilesam`")
    return load_mobilesam(path)
