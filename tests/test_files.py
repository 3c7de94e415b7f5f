"""Files appear whole, links are followed, locks are waited for, and states tell changed files apart."""

import hashlib
import os
import sys
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from emat.datasets.layouts import open_dataset
from emat.files import emat_home, file_sha256, folder_state, locked, read_json, read_text, walk
from emat.inference.photos import find_photos
from emat.outputs import write_text
from tests.raises import raises_code


def test_a_file_has_its_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
    with raises_code("no-such-file", "nothing"):
        file_sha256(tmp_path / "nothing")


def test_the_state_of_a_folder_changes_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"1")
    before = folder_state(tmp_path)
    assert folder_state(tmp_path) == before
    os.utime(tmp_path / "a.png", ns=(1, 1))
    touched = folder_state(tmp_path)
    (tmp_path / "b.png").write_bytes(b"2")
    assert len({before, touched, folder_state(tmp_path)}) == 3


def files_below(root: Path, deepest: int | None = None) -> list[str]:
    return sorted(
        (folder / name).relative_to(root).as_posix() for folder, names in walk(root, deepest) for name in names
    )


def test_links_are_followed_wherever_they_lead(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    write_text(root / "own.txt", "")
    write_text(elsewhere / "inside" / "far.txt", "")
    write_text(tmp_path / "alone.txt", "")
    (root / "linked").symlink_to(elsewhere)
    (root / "again").symlink_to(elsewhere)
    (root / "one.txt").symlink_to(tmp_path / "alone.txt")
    (root / "broken.txt").symlink_to(tmp_path / "nothing")
    assert files_below(root) == ["again/inside/far.txt", "linked/inside/far.txt", "one.txt", "own.txt"]
    assert files_below(root, deepest=1) == ["one.txt", "own.txt"]


def test_links_that_lead_back_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in ("a", "b"):
        write_text(root / folder / "file.txt", "")
    (root / "a" / "self").symlink_to(root / "a")
    (root / "a" / "root").symlink_to(root)
    (root / "a" / "outside").symlink_to(tmp_path)
    (root / "a" / "other").symlink_to(root / "b")
    (root / "b" / "other").symlink_to(root / "a")
    assert files_below(root) == ["a/file.txt", "a/other/file.txt", "b/file.txt", "b/other/file.txt"]


def hold(path: Path, held: Event, release: Event) -> None:
    with locked(path, lambda: None):
        held.set()
        release.wait(60)


def test_a_lock_waits_for_another_process_and_says_so_once(tmp_path: Path) -> None:
    context = get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "x.lock", held, release))
    other.start()
    assert held.wait(60)
    said: list[str] = []

    def waiting() -> None:
        said.append("waiting")
        release.set()

    with locked(tmp_path / "x.lock", waiting):
        assert said == ["waiting"]
    other.join()
    with locked(tmp_path / "x.lock", waiting):
        assert said == ["waiting"]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    context = get_context("spawn")
    held, never = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "x.lock", held, never))
    other.start()
    assert held.wait(60)
    other.kill()
    other.join()
    with locked(tmp_path / "x.lock", lambda: None):
        pass


def test_the_home_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    assert emat_home() == tmp_path
    monkeypatch.delenv("EMAT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    if sys.platform == "linux":
        assert emat_home() == Path("/cache/emat")
    assert emat_home().name == "emat"


def test_a_link_to_itself_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "a.json").touch()
    assert list(walk(tmp_path)) == [(tmp_path, ["a.json"])]


def test_only_a_regular_file_is_opened_and_nothing_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, code in (
        (tmp_path / "pipe", "not-a-file"),
        (Path("/dev/zero"), "not-a-file"),
        (tmp_path, "not-a-file"),
        (tmp_path / "gone", "no-such-file"),
        (tmp_path / "a\0b", "cannot-read"),
        (tmp_path / ("x" * 300), "cannot-read"),
    ):
        for read in (read_text, read_json, file_sha256):
            with raises_code(code):
                read(path)


def test_a_number_that_python_does_not_read_is_said_without_pythons_advice(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" + "1" * 5000 + "]")
    with raises_code("bad-syntax", "thousands of digits"):
        read_json(tmp_path / "a.json")


def test_text_has_a_limit_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("12345")
    assert read_text(tmp_path / "a.txt", 5) == "12345"
    with raises_code("file-too-large"):
        read_text(tmp_path / "a.txt", 4)


def test_the_home_folder_of_nobody_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", "~nobody-of-this-name/x")
    for act in (
        emat_home,
        lambda: open_dataset("~nobody-of-this-name/x"),
        lambda: find_photos(["~nobody-of-this-name/x"]),
    ):
        with raises_code("no-such-file"):
            act()


def test_a_lock_that_cannot_be_written_is_one_sentence() -> None:
    with raises_code("cannot-write"), locked(Path("/proc/nothing/a.lock"), waiting=lambda: None):
        raise AssertionError
