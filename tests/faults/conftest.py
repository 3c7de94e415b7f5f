"""A process that runs commands, kills them, and lets them run out of room."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@dataclass(frozen=True)
class Ended:
    """How a command ended; a negative code is the signal that ended it."""

    code: int
    out: str
    err: str
    seconds: float


class Commands:
    """Runs emat in another process, one command after the other."""

    def __init__(self, home: Path) -> None:
        environment = {**os.environ, "EMAT_HOME": str(home), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process: Any = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("runner.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )

    def run(
        self,
        *arguments: object,
        kill_after: float | None = None,
        file_limit: int | None = None,
        home: Path | None = None,
        server: str | None = None,
    ) -> Ended:
        """Run `emat ARGUMENTS`, and kill it after so many seconds if it has not ended by then."""
        asked = {
            "arguments": [str(each) for each in arguments],
            "kill_after": kill_after,
            "file_limit": file_limit,
            "home": None if home is None else str(home),
            "server": server,
        }
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    running = Commands(tmp_path_factory.mktemp("home"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six photos with masks of two classes, as a data set of kind `folder`."""
    root, random = tmp_path_factory.mktemp("album"), np.random.default_rng(0)
    for folder in ("images", "masks"):
        (root / folder).mkdir()
    (root / "classes.txt").write_text("cat\ndog\n")
    for number in range(6):
        photo = random.integers(60, 200, (40, 50, 3), np.uint8)
        mask = np.zeros((40, 50), np.uint8)
        mask[5:20, 5:25], mask[22:38, 20:45] = 1, 2
        photo[mask == 1], photo[mask == 2] = (230, 30, 30), (30, 30, 230)
        Image.fromarray(photo).save(root / "images" / f"{number}.png")
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def fitted(commands: Commands, head: Path, album: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fitted") / "pets.emat"
    ended = commands.run("fit", album, "-o", path, "--model", head, "--no-learn", "--shots", 1)
    assert ended.code == 0, ended.err
    return path
