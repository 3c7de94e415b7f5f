"""The documentation site builds without warnings, loads nothing from other servers, and shows up-to-date diagrams."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import emat
from tests.docs.test_pages import blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch"}


class LoadedAddresses(HTMLParser):
    """Collects the addresses that a browser loads by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in LOADING and values.get(LOADING[tag]):
            self.addresses.append(values[LOADING[tag]])
        elif tag == "link" and LOADED_LINKS & set(values.get("rel", "").split()):
            self.addresses.append(values.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_names_what_it_documents(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    built = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    assert {page.replace("README", "index") for page in pages} <= built
    assert "Segmenter" in (site / "reference" / "inference.html").read_text(encoding="utf-8")
    assert "emat predict" in (site / "reference" / "cli.html").read_text(encoding="utf-8")


def test_the_search_knows_pages_and_the_reference(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "forecast" in entry["text"].lower()}
    assert {"own-photos.html", "reference/inference.html", "reference/cli.html"} <= found


def test_the_reference_covers_what_is_public_and_what_the_pages_import() -> None:
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md"]
    documented = {
        name for path in pages for name in re.findall(r"^::: ([\w.]+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    wanted = {("emat", name) for name in emat.__all__ if name != "__version__"}
    for text in (text for path in pages for text in blocks(path, "python")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "emat":
                wanted |= {(str(node.module), alias.name) for alias in node.names}
    for module, name in sorted(wanted):
        thing = getattr(importlib.import_module(module), name)
        assert {f"{thing.__module__}.{name}", thing.__module__, module} & documented, f"{module}.{name}"


def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    for path in site.rglob("*.html"):
        parser = LoadedAddresses()
        parser.feed(path.read_text(encoding="utf-8"))
        elsewhere = [address for address in parser.addresses if re.match(r"(https?:)?//", address)]
        assert not elsewhere, f"{path.relative_to(site)} loads {elsewhere}"
    for path in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", path.read_text(encoding="utf-8")), path


def test_diagrams_are_pictures_in_the_site(site: Path) -> None:
    page = (site / "architecture.html").read_text(encoding="utf-8")
    assert "images/diagrams/way-of-the-data.svg" in page
    assert 'class="mermaid"' not in page  # the theme would load Mermaid from another server


def test_the_picture_of_every_diagram_shows_its_present_source() -> None:
    hooks = site_hooks()
    found = [diagram for path in DOCS.rglob("*.md") for diagram in hooks.diagrams(path.read_text(encoding="utf-8"))]
    assert found
    assert sum(path.read_text(encoding="utf-8").count("```mermaid") for path in DOCS.rglob("*.md")) == len(found)
    for name, source in found:
        first_line = (DOCS / hooks.DIAGRAMS / f"{name}.svg").read_text(encoding="utf-8").splitlines()[0]
        assert hooks.source_hash(source) in first_line, f"{name} was changed; run docs/pictures.py diagrams"


def site_hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
