"""The package's layers import downwards only, and importing it stays cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "emat"

# Each row may import from itself and from the rows above it. Parts of one row that are not to know each other are
# kept apart by APART. The modules of `pictures` are in the row of what they draw.
LAYERS = [
    {"errors"},
    {"files", "progress", "plugins"},
    {"outputs", "journal", "threads"},
    {"archives"},
    {"images", "device", "distributed", "tensor_files"},
    {"weights", "recent"},
    {"formats"},
    {"pictures.palette", "pictures.overlay", "pictures.html", "pictures"},
    {"backbone", "datasets"},
    {"tasks", "model"},
    {"methods", "refine", "pictures.task"},
    {"pixel_learner"},
    {"features"},
    {"inference", "measure"},
    {"training", "evaluation", "pictures.demo"},
    {"reports", "scale", "integrations", "studio", "cli", "__main__"},
]
APART = {("backbone", "datasets"), ("tasks", "model")}
WITHOUT_TORCH = {"datasets", "tasks", "formats", "images", "errors", "files", "outputs", "journal", "progress"}


def layer_of(part: str) -> int:
    return next(index for index, layer in enumerate(LAYERS) if part in layer)


def imports_of(path: Path) -> set[str]:
    """Full names of the modules a file imports, wherever in the file it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} imports relatively"
            found.add(node.module)
            if node.module == "emat":
                found |= {f"emat.{alias.name}" for alias in node.names}
    return found


def part_of(module: str) -> str:
    """The part that a module, named without `emat.`, belongs to: its package, or itself in `pictures`."""
    return module.removesuffix(".__init__") if module.startswith("pictures.") else module.split(".")[0]


def parts() -> list[tuple[str, Path]]:
    files = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]
    return [(part_of(".".join(path.relative_to(PACKAGE).with_suffix("").parts)), path) for path in files]


@pytest.mark.parametrize(
    ("part", "path"), parts(), ids=lambda value: str(value) if isinstance(value, str) else value.stem
)
def test_imports_point_downwards(part: str, path: Path) -> None:
    for module in imports_of(path):
        if not module.startswith("emat.") or (other := part_of(module[5:])).startswith("__version__"):
            continue
        if other not in set().union(*LAYERS):
            continue  # a name of the package itself, such as Segmenter
        assert layer_of(other) <= layer_of(part), f"{path} must not import {module}"
        assert (part, other) not in APART, f"{path} must not import {module}"
        assert (other, part) not in APART, f"{path} must not import {module}"


@pytest.mark.parametrize(("part", "path"), [p for p in parts() if p[0] in WITHOUT_TORCH], ids=lambda v: str(v)[-40:])
def test_data_and_tasks_never_see_a_tensor(part: str, path: Path) -> None:
    assert not {module for module in imports_of(path) if module.split(".")[0] == "torch"}


def fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_emat_loads_neither_torch_nor_anything_optional() -> None:
    heavy = fresh_python("import sys, emat; print(*{name.split('.')[0] for name in sys.modules})").split()
    assert not {"torch", "lightning", "pycocotools", "matplotlib", "numpy", "PIL"} & set(heavy)


def test_help_does_not_import_torch() -> None:
    code = "import sys, emat.cli\ntry: emat.cli.main(['--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    assert fresh_python(code).split()[-1] == "False"


def test_building_a_network_does_not_import_sympy() -> None:
    code = "import sys, emat.backbone as b; b.build_backbone('efficientnet-lite2'); print('sympy' in sys.modules)"
    assert fresh_python(code) == "False\n"


def test_predicting_imports_no_part_of_scipy_that_it_does_not_use() -> None:
    unused = {"scipy.optimize", "scipy.cluster", "scipy.sparse.csgraph"}
    assert not unused & set(fresh_python("import sys, emat.cli.predict; print(*sys.modules)").split())
