"""Fixtures for several test packages: fold lists, a file server, and the folder of data that is not in the project."""

import json
import lzma
import os
import pickle
import signal
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.file_server import Server

# A test says whether something is right, not how fast this machine is just now.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

os.environ["EMAT_OFFLINE"] = "1"  # tests of downloads, from a server on this machine, take it away

if "PYTEST_XDIST_WORKER" in os.environ:  # one process a core already: threads would only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts tests in the background lets them ignore Ctrl-C, and the programs that they start as well.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(os.environ.get("EMAT_SHARED", Path(__file__).parents[2] / "shared"))
PACKED_LISTS = Path(__file__).parent / "data" / "fold_lists.json.xz"
SIZE_SPLITS = {"0-5": (0,), "5-10": (1,), "10-15": (2,), "0-15": (0, 1, 2)}
NO_DATA = "for want of data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden tensors and real photos; the test is skipped where it is absent."""
    if not (SHARED / "parity").is_dir():
        pytest.skip(f"{NO_DATA}: {SHARED} is not there; set EMAT_SHARED to the folder that holds parity/ and data/")
    return SHARED


@pytest.fixture(scope="session")
def fold_lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all 45 published fold lists, in the layout and the file formats in which they are published."""
    folder = tmp_path_factory.mktemp("published") / "splits"
    for packed in json.loads(lzma.decompress(PACKED_LISTS.read_bytes())):
        names = [packed["prefix"] + name + packed["suffix"] for name in packed["names"].split(" ")]
        entries = list(zip(names, _values(packed["classes"]), strict=True))
        root = folder / packed["dataset"]
        if packed["split"] == "train":
            _write_list(root / "trn", packed, entries)
            continue
        _write_list(root / "val", packed, entries)
        sizes = list(_values(packed["sizes"]))  # of every entry, as an index of the size splits; -1 for larger objects
        for split, indices in SIZE_SPLITS.items():
            kept = [entry for entry, size in zip(entries, sizes, strict=True) if size in indices]
            _write_list(root / "custom" / split, packed, kept)
    return folder


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head with random weights, so that tests of heads do not depend on the quality of a trained one."""
    import torch  # not before the number of threads is set, above

    from emat.methods.trained_head import save_head
    from emat.model import build

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("heads") / "tiny.safetensors"
    save_head(path, build("emat", channels=42).state_dict(), {"backbone": "efficientnet-lite2", "image_size": "64"})
    return path


@pytest.fixture
def online_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own, and leave to fetch from servers on this machine."""
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("EMAT_OFFLINE", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(bytes(range(256)) * 4096)  # 1 MiB
    yield running
    running.http.shutdown()
    running.http.server_close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", default="200", help="How many kills the campaign of tests/faults has.")
    parser.addoption("--kills-from", default="100", help="The seed that the campaign of tests/faults begins with.")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many tests were skipped because the data they need is not in the project."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_DATA in str(report.longrepr)]
    if skipped:
        tests = "1 test was" if len(skipped) == 1 else f"{len(skipped)} tests were"
        terminalreporter.write_line(f"{tests} skipped {NO_DATA} (see CONTRIBUTING.md, Test data)")


def _values(runs: list[list[int]]) -> chain[int]:
    """The values of a run-length coded list: [[5, 2], [7, 1]] gives 5, 5, 7."""
    return chain.from_iterable(repeat(value, times) for value, times in runs)


def _write_list(folder: Path, packed: dict[str, Any], entries: list[tuple[str, int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if packed["dataset"] == "pascal":
        text = "".join(f"{name}__{class_id:02}\n" for name, class_id in entries)
        (folder / f"fold{packed['fold']}.txt").write_text(text)
        return
    names_of_class: dict[int, list[str]] = {}
    for name, class_id in entries:
        names_of_class.setdefault(class_id - 1, []).append(name)  # COCO's files count classes from 0
    (folder / f"fold{packed['fold']}.pkl").write_bytes(pickle.dumps(names_of_class))
