"""Class areas of PASCAL's real masks, counted once for all tests of tasks."""

from pathlib import Path

import pytest

from emat.datasets.dataset import ClassAreas
from emat.datasets.pascal import PascalDataset


@pytest.fixture(scope="session")
def areas(shared: Path) -> ClassAreas:
    return ClassAreas(PascalDataset(shared / "data" / "voc2012-masks.zip").mask)
