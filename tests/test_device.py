import pytest
import torch

from emat.device import autocast, available_devices, choose_device, main_memory
from emat.errors import EmatError


def test_the_processor_is_always_there_and_last() -> None:
    assert available_devices()[-1].name == "cpu"


def test_the_best_device_is_chosen_unless_one_is_named() -> None:
    assert str(choose_device(None)) == str(choose_device("auto")) == available_devices()[0].name
    assert choose_device("cpu") == choose_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "tpu0"])
def test_a_device_that_is_not_there_is_answered_with_those_that_are(name: str) -> None:
    with pytest.raises(EmatError, match=f"device '{name}'.*here: .*cpu, or auto"):
        choose_device(name)


def test_autocast_computes_in_the_type_asked_for() -> None:
    device, x = choose_device("cpu"), torch.ones(2, 2)
    with autocast(device, torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    for same in (None, torch.float32):
        with autocast(device, same):
            assert (x @ x).dtype == torch.float32


def test_a_type_no_device_computes_in_is_refused() -> None:
    with pytest.raises(EmatError, match="cpu does not compute in int8; use float32"):
        autocast(choose_device("cpu"), torch.int8)


def test_memory_is_read_where_the_system_tells() -> None:
    memory = main_memory()
    assert memory.total is not None
    assert memory.total > 2**28
    assert memory.available is None or 0 < memory.available <= memory.total
