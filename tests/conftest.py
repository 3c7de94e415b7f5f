"""What several test files need: the folder of golden tensors and real images; absent, its tests skip with a reason."""

import os
from pathlib import Path

import hypothesis
import pytest

# A test says whether something is right, not how fast this machine is just now.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

if "PYTEST_XDIST_WORKER" in os.environ:  # one process a core already: threads would only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

SHARED = Path(os.environ.get("EMAT_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with parity data and real images; the test is skipped where it is absent."""
    if not (SHARED / "parity").is_dir():
        pytest.skip(f"no shared data at {SHARED}; set EMAT_SHARED to the folder that holds parity/ and data/")
    return SHARED
