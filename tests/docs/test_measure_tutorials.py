"""The tutorials on measuring: their commands run on photos whose true values are known, and find them."""

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from docs.measure_examples import write_all
from tests.cli.command import run

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
COMMANDS = re.compile(r"^emat (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tutorials")
    write_all(path)
    return path


def followed(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the commands of a page in a folder, and return what is true there."""
    monkeypatch.chdir(folder)
    for words in COMMANDS.findall((TUTORIALS / page).read_text()):
        assert run(*shlex.split(words)) == 0
    return dict(json.loads((folder / "truth.json").read_text()))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_leaf_severity(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = followed("leaf-severity.md", folder / "leaves", monkeypatch)
    rows = {(row["photo"], row["class"]): row for row in rows_of(folder / "leaves" / "report" / "photos.csv")}
    for (photo, name), row in rows.items():
        if name == "lesion":
            assert float(row["share_within"]) == pytest.approx(truth[photo]["severity"], abs=2)
        if name == "leaf":
            # An outline of the coin that is a pixel off changes areas by 4 to 6 %, as the page says.
            assert float(row["area_mm2"]) == pytest.approx(truth[photo]["leaf_mm2"], rel=0.07)


@pytest.mark.slow
def test_nuclei(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = followed("nuclei.md", folder / "nuclei", monkeypatch)
    rows = rows_of(folder / "nuclei" / "report" / "objects.csv")
    for photo in {row["photo"] for row in rows}:
        own = [row for row in rows if row["photo"] == photo]
        assert len(own) == truth[photo]["count"]
        assert sum(float(row["intensity_mean_GFP"]) > 3000 for row in own) == truth[photo]["positive"]
        assert sum(float(row["area_um2"]) for row in own) == pytest.approx(truth[photo]["area_um2"], rel=0.05)


@pytest.mark.slow
def test_crack_width(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = followed("crack-width.md", folder / "cracks", monkeypatch)
    widths: dict[str, float] = {}
    for row in rows_of(folder / "cracks" / "report" / "objects.csv"):
        if float(row["skeleton_length_mm"]) > 20:
            widths[row["photo"]] = float(row["width_mean_mm"])
    for photo, width in widths.items():
        assert width == pytest.approx(truth[photo]["width_mm"], rel=0.15)
    verdicts = {row["photo"]: row["verdict"] for row in rows_of(folder / "cracks" / "verdict" / "photos.csv")}
    assert len(verdicts) == 3
