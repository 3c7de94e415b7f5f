"""Members of zip and tar archives: taken safely, refused with a sentence."""

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest

from emat.archives import archive_members, take_member
from tests.raises import raises_code

CONTENT = {"a/one.bin": b"1" * 3000, "a/two.bin": b"22"}


def write_archive(path: Path, content: dict[str, bytes], kind: str) -> Path:
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, value in content.items():
                archive.writestr(name, value)
        return path
    fast: dict[str, Any] = {"compresslevel": 1} if kind == "gz" else {}
    with tarfile.open(path, cast(Any, f"w:{kind}"), **fast) as tar:
        for name, value in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(value)
            tar.addfile(member, io.BytesIO(value))
    return path


@pytest.mark.parametrize("kind", ["zip", "", "gz", "xz"])
def test_members_of_every_kind_of_archive_are_listed_and_taken(tmp_path: Path, kind: str) -> None:
    path = write_archive(tmp_path / "archive", CONTENT, kind)
    members = archive_members(path)
    assert {member.name: member.bytes for member in members} == {name: len(value) for name, value in CONTENT.items()}
    for member in members:
        take_member(path, member, tmp_path / "taken")
        assert (tmp_path / "taken").read_bytes() == CONTENT[member.name]


def test_a_tar_that_ends_with_a_zip_is_still_a_tar(tmp_path: Path) -> None:
    inner = write_archive(tmp_path / "inner", {"x": b"x"}, "zip").read_bytes()
    path = write_archive(tmp_path / "archive", {"fold-0/best.ckpt": inner}, "")
    assert [member.name for member in archive_members(path)] == ["fold-0/best.ckpt"]


@pytest.mark.parametrize("kind", ["zip", "gz"])
@pytest.mark.parametrize("name", ["../evil.ckpt", "/evil.ckpt", "a/../../evil.ckpt", "C:/evil.ckpt", "a\\..\\..\\evil"])
def test_names_that_lead_out_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    path = write_archive(tmp_path / "archive", {name: b"x"}, kind)
    with raises_code("path-leads-out"):
        archive_members(path)


@pytest.mark.parametrize("kind", ["zip", "", "gz"])
def test_an_archive_that_is_cut_short_is_one_sentence(tmp_path: Path, kind: str) -> None:
    path = write_archive(tmp_path / "archive", {"a": bytes(range(256)) * 400, "b": b"1"}, kind)
    members = archive_members(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with raises_code("damaged-file", "cut short"):
        archive_members(path)
    with raises_code("damaged-file", "cut short"):
        take_member(path, members[0], tmp_path / "taken")


def test_links_are_not_followed_and_doubled_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("fold-0/best.ckpt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert archive_members(path) == []
    with tarfile.open(path, "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("a"))
    with raises_code("unsafe-archive"):
        archive_members(path)


def test_a_web_page_in_place_of_an_archive_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("<!DOCTYPE html><html></html>")
    with raises_code("damaged-file", "a web page"):
        archive_members(tmp_path / "archive")
