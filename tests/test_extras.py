"""Every extra alone in a fresh environment: it brings what its part of emat needs, and without it one sentence says so.

It installs packages, so it takes minutes and a connection: run it with `pytest -m slow tests/test_extras.py`.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from emat.errors import install_command

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib", reason="the list of extras is TOML")

ROOT = Path(__file__).parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FITTED = """
import numpy as np
from emat import Example, Segmenter
photo = np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)
fitted = Segmenter.load("default", device="cpu", learn=False).fit([Example(photo, {"cat": photo[..., 0] > 99})])
"""
WORKS = {
    "train": "from emat.distributed import open_fabric; open_fabric('cpu', 1, 1)",
    "data": "import numpy as np; from emat import Example\n"
    "Example(np.zeros((40, 50, 3), np.uint8), {'cat': [(5, 5), (30, 5), (30, 30)]}).read()",
    "studio": "from emat.studio.server import _require_extra; _require_extra()",
    "report": "from emat.reports.figures import new_figure; new_figure(2, 2)",
    "science": "import numpy as np; from pathlib import Path; from emat.images.slides import Slide, _tifffile\n"
    "_tifffile().imwrite('a.tif', np.zeros((64, 64, 3), np.uint8), tile=(16, 16))\n"
    "Slide(Path('a.tif')).read(0, 0, 9, 9)",
    "export": "from pathlib import Path; from emat import Segmenter; from emat.scale.export import export_head\n"
    "export_head(Segmenter.load('default', device='cpu'), Path('head.onnx'))",
    "serve": FITTED + "from emat.scale.serve import build_app; build_app(fitted)",
    "measure": FITTED + "print(fitted.predict(photo).measure())",
    "heic": "from emat.images.sources import _register_heif; _register_heif('a.heic')",
    "video": "from emat.images.videos import _av; _av()",
    "hub": "from emat.inference.hub import _api; _api()",
    "fiftyone": FITTED + "from emat.integrations.fiftyone import model_of; model_of(fitted)",
    "ray": "from emat.scale.ray_predict import _ray; from emat.scale.ray_predict import BulkOutput\n"
    "_ray(); BulkOutput('out').claim('x')",
    "cvat": FITTED + "from emat.integrations.cvat import CvatFunction; print(CvatFunction(fitted).spec.labels)",
    "napari": "import napari, npe2; from importlib import resources\n"
    "npe2.PluginManifest.from_file(str(resources.files('emat.integrations') / 'napari.yaml'))",
}


def environment_at(folder: Path) -> Path:
    """Make an environment and return its Python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run(python: Path, *words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(python), *words], cwd=folder, env=clean, capture_output=True, text=True, check=False)


def install(python: Path, *requirements: str, folder: Path) -> None:
    done = run(python, "-m", "pip", "install", "--quiet", *requirements, folder=folder)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with emat alone. EMAT_TEST_BASE names a folder in which it is kept for another run."""
    kept = os.environ.get("EMAT_TEST_BASE")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("base")
    python = folder / "bin/python"
    if not (folder / "installed").is_file():
        python = environment_at(folder)
        install(python, str(ROOT), folder=folder)
        (folder / "installed").touch()
    return python


@pytest.mark.slow
def test_emat_alone_fits_and_predicts_and_is_imported_quickly(base: Path, tmp_path: Path) -> None:
    done = run(base, "-c", FITTED + "print(sorted(fitted.predict(photo).scores))", folder=tmp_path)
    assert done.stdout.strip() == "['cat']", done.stderr
    code = "import torch, time; began = time.process_time(); import emat; print(time.process_time() - began)"
    taken = [float(run(base, "-c", code, folder=tmp_path).stdout) for _ in range(3)]
    assert min(taken) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("extra", WORKS)
def test_an_extra_alone_works_and_is_named_where_it_is_missing(base: Path, extra: str, tmp_path: Path) -> None:
    missing = run(base, "-c", WORKS[extra], folder=tmp_path)
    assert missing.returncode != 0
    if extra != "napari":  # napari is what imports emat then, not the other way round
        assert install_command(extra) in missing.stderr
    python = environment_at(tmp_path / "venv")
    packages, own = (
        run(each, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=tmp_path).stdout.strip()
        for each in (base, python)
    )
    (Path(own) / "base.pth").write_text(packages + "\n")  # emat and PyTorch are not installed once more
    install(python, *EXTRAS[extra], folder=tmp_path)
    done = run(python, "-c", WORKS[extra], folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_extra_is_tried() -> None:
    assert set(EXTRAS) - set(WORKS) == {"docs", "dev", "all"}
