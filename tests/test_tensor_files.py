import argparse
import contextlib
import os
import pathlib
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from emat.errors import EmatError
from emat.tensor_files import digest, read_metadata, read_tensors, write_tensors
from tests.raises import raises_code

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.int64)}


class AttributeDict(dict[str, Any]):
    """As training frameworks keep hyper-parameters."""


class Hostile:
    """Unpickled by ordinary means it creates a file."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


def assert_weights(tensors: dict[str, torch.Tensor]) -> None:
    assert set(tensors) == set(WEIGHTS)
    assert all(torch.equal(tensors[name], value) for name, value in WEIGHTS.items())


def test_every_format_gives_the_same_tensors_whatever_its_suffix(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "a.bin")
    torch.save(WEIGHTS, tmp_path / "b.safetensors")
    torch.save({"state_dict": OrderedDict(WEIGHTS), "epoch": 3}, tmp_path / "c.ckpt")
    torch.save({"model": {"state_dict": WEIGHTS}}, tmp_path / "d.pt")
    torch.save(WEIGHTS, tmp_path / "e.pth", _use_new_zipfile_serialization=False)
    torch.save({name: torch.nn.Parameter(v, requires_grad=False) for name, v in WEIGHTS.items()}, tmp_path / "f.pth")
    for path in sorted(tmp_path.iterdir()):
        assert_weights(read_tensors(path))


def test_a_training_checkpoint_gives_its_tensors_and_none_of_its_objects(tmp_path: Path) -> None:
    checkpoint = {
        "state_dict": WEIGHTS,
        "hyper_parameters": AttributeDict(lr=1e-3, args=argparse.Namespace(way=1, path=pathlib.PurePosixPath("/x"))),
        "callbacks": {"best": np.float64(0.5), "kind": np.dtype("float32"), "array": np.ones(3)},
        "options": argparse.Namespace(benchmark="pascal", inner=argparse.Namespace(shot=1)),
    }
    torch.save(checkpoint, tmp_path / "fold0.ckpt")
    assert_weights(read_tensors(tmp_path / "fold0.ckpt"))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("way", ["open", "exec", "touch", "system"])
def test_nothing_in_a_hostile_file_is_run(tmp_path: Path, way: str, zipped: bool) -> None:
    trace = tmp_path / "trace"
    hostile = {
        "open": Hostile(open, str(trace), "w"),
        "exec": Hostile(exec, f"open({str(trace)!r}, 'w')"),
        "touch": Hostile(Path.touch, trace),
        "system": Hostile(os.system, f"touch {trace}"),
    }[way]
    torch.save({"state_dict": WEIGHTS, "x": hostile}, tmp_path / "x.ckpt", _use_new_zipfile_serialization=zipped)
    with contextlib.suppress(EmatError):  # refusing the file is as good as reading past it
        assert_weights(read_tensors(tmp_path / "x.ckpt"))
    assert not trace.exists()
    torch.load(tmp_path / "x.ckpt", weights_only=False)
    assert trace.exists(), "the file must be one that does harm where it is unpickled"


def test_stand_ins_are_gone_after_reading(tmp_path: Path) -> None:
    before = torch.serialization.get_safe_globals()
    torch.save({"state_dict": WEIGHTS, "x": argparse.Namespace(a=1)}, tmp_path / "x.ckpt")
    read_tensors(tmp_path / "x.ckpt")
    assert torch.serialization.get_safe_globals() == before


def test_damaged_and_foreign_files_are_one_sentence(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "whole.safetensors")
    torch.save(WEIGHTS, tmp_path / "whole.pth")
    for name in ("whole.safetensors", "whole.pth"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / f"cut.{name}").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.pth").write_text("hello, this is no network")
    (tmp_path / "empty.pth").write_bytes(b"")
    torch.save({"epoch": 3}, tmp_path / "no_tensors.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "whole.safetensors").unlink()
    (tmp_path / "whole.pth").unlink()
    for path in [*tmp_path.iterdir(), tmp_path / "absent.pth", tmp_path]:
        with pytest.raises(EmatError) as caught:
            read_tensors(path)
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_is_written_is_read_again_with_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "new" / "w.safetensors"
    table = torch.arange(12.0).view(3, 4)
    write_tensors(path, {"rows": table[:2], "turned": table.T, "half": table.half()}, {"source": "here"})
    tensors = read_tensors(path)
    assert torch.equal(tensors["turned"], table.T)
    assert tensors["half"].dtype == torch.float16
    assert read_metadata(path) == {"source": "here"}
    assert [one.name for one in path.parent.iterdir()] == ["w.safetensors"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_tensors(path, WEIGHTS, {})
    with pytest.raises(Exception, match="metadata"):
        write_tensors(path, {"x": torch.zeros(1)}, {"number": 3})  # type: ignore[dict-item]
    assert_weights(read_tensors(path))
    assert [one.name for one in tmp_path.iterdir()] == ["w.safetensors"]


def test_the_digest_depends_on_names_types_shapes_and_values_only() -> None:
    same = digest({"a": torch.ones(2, 3)})
    assert digest({"a": torch.ones(3, 2).T}) == same
    others = [{"b": torch.ones(2, 3)}, {"a": torch.ones(6)}, {"a": torch.ones(2, 3).double()}, {"a": torch.zeros(2, 3)}]
    assert same not in [digest(other) for other in others]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_a_written_file_can_be_read_by_other_users(tmp_path: Path) -> None:
    write_tensors(tmp_path / "head.safetensors", {"a": torch.ones(1)}, {})
    assert (tmp_path / "head.safetensors").stat().st_mode & 0o777 == 0o644


def test_tensors_that_are_no_weights_are_left_out(tmp_path: Path) -> None:
    odd = {
        "sparse": torch.ones(3).to_sparse(),
        "without values": torch.ones(3, device="meta"),
        "complex": torch.ones(3, dtype=torch.complex64),
        "of terabytes": torch.zeros(1).expand(10**6, 10**6),
    }
    torch.save({"state_dict": {**WEIGHTS, **odd}}, tmp_path / "a.ckpt")
    assert_weights(read_tensors(tmp_path / "a.ckpt"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_are_numbers(tmp_path: Path, value: float) -> None:
    save_file({**WEIGHTS, "c": torch.tensor([1.0, value])}, tmp_path / "a.safetensors")
    with raises_code("damaged-file", "c has values that are no numbers"):
        read_tensors(tmp_path / "a.safetensors")


def test_odd_checkpoints_are_refused_without_remarks_of_torch(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "old.pth").write_bytes(pickle.dumps({"a": Hostile(os.getcwd)}, protocol=5))
    for name in ("empty.pth", "old.pth"):
        with raises_code("damaged-file"):
            read_tensors(tmp_path / name)
    assert [str(one.message) for one in recwarn] == []
