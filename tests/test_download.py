import hashlib
from pathlib import Path
from typing import Any

import pytest

from emat.download import download
from emat.errors import EmatError


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("EMAT_OFFLINE", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def test_a_file_arrives_whole_under_its_own_name_only(server: Any, tmp_path: Path) -> None:
    download(server.url, tmp_path / "x" / "file")
    assert (tmp_path / "x" / "file").read_bytes() == server.content
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["file"]


def test_a_connection_that_breaks_midway_is_taken_up_where_it_broke(server: Any, tmp_path: Path) -> None:
    server.breaks_after = [300_000, 200_000]
    download(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == server.content
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_a_part_left_by_an_earlier_process_is_continued(server: Any, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(server.content[:1000])
    (tmp_path / "file.part.etag").write_text(server.etag)
    download(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == server.content
    assert server.ranges == ["bytes=1000-"]


def test_a_part_of_another_version_is_started_anew(server: Any, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"old" * 1000)
    (tmp_path / "file.part.etag").write_text('"version-0"')
    download(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == server.content


def test_a_part_longer_than_the_file_is_started_anew(server: Any, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(server.content + b"more")
    (tmp_path / "file.part.etag").write_text(server.etag)
    download(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == server.content


def test_a_server_that_gives_nothing_new_any_more_is_given_up_and_the_part_kept(server: Any, tmp_path: Path) -> None:
    server.breaks_after = [1000] + [0] * 20
    with pytest.raises(EmatError, match="broke after 1000 of 1048576 bytes"):
        download(server.url, tmp_path / "file")
    assert (tmp_path / "file.part").stat().st_size == 1000
    assert not (tmp_path / "file").exists()
    server.breaks_after = []
    download(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == server.content


def test_the_checksum_that_the_hub_announces_is_checked(server: Any, tmp_path: Path) -> None:
    server.announced = hashlib.sha256(server.content).hexdigest()
    download(server.url, tmp_path / "good")
    server.announced = "0" * 64
    with pytest.raises(EmatError, match="SHA-256"):
        download(server.url, tmp_path / "bad")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["good"]


def test_a_file_that_is_not_there_and_a_server_that_is_not_there_are_one_sentence(server: Any, tmp_path: Path) -> None:
    server.http.RequestHandlerClass.do_GET = lambda self: self.send_error(404)
    with pytest.raises(EmatError, match="answered 404 Not Found"):
        download(server.url, tmp_path / "file")
    with pytest.raises(EmatError, match="out of reach"):
        download("http://127.0.0.1:1/file", tmp_path / "file")


@pytest.mark.parametrize("name", ["EMAT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_means_not_even_asking(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(EmatError, match="is set"):
        download(server.url, tmp_path / "file")
    assert server.ranges == []


def test_the_hubs_address_can_be_replaced_by_a_mirrors(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url.removesuffix("/file.bin") + "/")
    download("https://huggingface.co/facebook/some/resolve/main/model.safetensors", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == server.content


def test_progress_is_plain_lines_where_there_is_no_terminal(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download(server.url, tmp_path / "file")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "file: 1.0 of 1.0 MB (100 %)"
