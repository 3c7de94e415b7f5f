"""Runs the notebooks from top to bottom, and keeps what their cells show in their files. It needs nbclient and ipykernel.

python notebooks/run.py own_photos measure     # without names: all of them
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbclient
import nbformat

FOLDER = Path(__file__).parent
SECONDS = 600  # that a cell may take


def run_notebook(path: Path, folder: Path) -> Any:
    """Return the notebook as it is after all cells were run in `folder`, with this checkout and without the network.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    environment = {
        "PYTHONPATH": str(FOLDER.parent),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "EMAT_OFFLINE": "1",
        "COLUMNS": "100",
    }
    notebook = nbformat.read(path, as_version=4)
    with patch.dict(os.environ, environment):
        resources = {"metadata": {"path": str(folder)}}
        nbclient.NotebookClient(notebook, timeout=SECONDS, resources=resources, coalesce_streams=True).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the time of day
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as empty:
            ran = run_notebook(FOLDER / f"{name}.ipynb", Path(empty))
        nbformat.write(ran, FOLDER / f"{name}.ipynb")
        print(name)
