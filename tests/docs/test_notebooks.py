"""The notebooks run from top to bottom, offline, and what they show is small."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbclient and ipykernel, which are not installed")
pytest.importorskip("nbclient", reason="notebooks need nbclient and ipykernel, which are not installed")
pytest.importorskip("ipykernel", reason="notebooks need nbclient and ipykernel, which are not installed")

from notebooks.run import run_notebook  # noqa: E402

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEEDS = {"measure": "skimage", "evaluate_and_train": "lightning"}
QUICK = ("own_photos",)  # the others take minutes
LARGEST = 400_000  # bytes with what the cells show


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path.stem in QUICK else [pytest.mark.slow], id=path.stem) for path in NOTEBOOKS],
)
def test_a_notebook_runs_and_shows_little(path: Path, tmp_path: Path) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem], reason=f"{path.name} needs an extra of emat")
    notebook = run_notebook(path, tmp_path)
    shown = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "emat: " not in shown, "a command failed"
    assert len(nbformat.writes(notebook)) < LARGEST


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_opens_in_colab_and_keeps_what_its_cells_show(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert "colab-badge.svg" in notebook.cells[0].source
    assert "%pip install" in notebook.cells[1].source
    ran = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count is not None]
    assert len(ran) == sum(cell.cell_type == "code" for cell in notebook.cells), "run notebooks/run.py"
    assert path.stat().st_size < LARGEST
