"""`emat studio` as a user runs it."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from emat.errors import install_command
from tests.cli.command import run

needs_extra = pytest.mark.skipif(importlib.util.find_spec("uvicorn") is None, reason="needs uvicorn")


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("studio", "--help") == 0
    assert "emat studio --load pets.emat" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert run("studio", "--load", tmp_path / "pets.emat") == "no-such-file"


@needs_extra
def test_a_port_that_is_taken_is_named(tiny_head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run("studio", "--no-browser", "--port", port, "--model", tiny_head) == "cannot-listen"
    assert f"port {port} is taken; choose another with --port" in capsys.readouterr().err


def test_without_the_server_the_extra_is_named(
    tiny_head: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run("studio", "--no-browser", "--model", tiny_head) == "missing-package"
    assert install_command("studio") in capsys.readouterr().err


@needs_extra
@pytest.mark.skipif(sys.platform == "win32", reason="ends processes by signals")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_ended_and_leaves_nothing_behind(
    end: signal.Signals, tiny_head: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-u", "-m", "emat", "studio", "--no-browser", "--private", "--model", str(tiny_head)]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "EMAT_HOME": str(tmp_path / "home")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as studio:
        assert studio.stdout is not None
        line = studio.stdout.readline()
        assert "http://127.0.0.1:" in line
        with urllib.request.urlopen(line.split()[4]) as answer:
            assert b"emat studio" in answer.read()
        assert any(path.name.startswith("emat-studio-") for path in tmp_path.iterdir())
        studio.send_signal(end)
        try:
            assert studio.wait(timeout=180) == 128 + end
        finally:
            studio.kill()  # a test that fails must not wait for it
    assert not any(path.name.startswith("emat-studio-") for path in tmp_path.iterdir())
    assert not (tmp_path / "home" / "studio").exists()
