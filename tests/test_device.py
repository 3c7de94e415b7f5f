"""The device is chosen, precision and memory are known, and workers share the cores."""

import threading

import pytest
import torch

from emat import device
from emat.device import Workers, all_cores, autocast, available_devices, choose_device, main_memory
from tests.raises import raises_code

CPU = torch.device("cpu")


def test_the_processor_is_always_there_and_last() -> None:
    assert available_devices()[-1].name == "cpu"


def test_the_best_device_is_chosen_unless_one_is_named() -> None:
    assert str(choose_device(None)) == str(choose_device("auto")) == available_devices()[0].name
    assert choose_device("cpu") == choose_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "tpu0"])
def test_a_device_that_is_not_there_is_answered_with_those_that_are(name: str) -> None:
    with raises_code("unknown-device", f"'{name}'"):
        choose_device(name)


def test_autocast_computes_in_the_type_asked_for() -> None:
    device, x = choose_device("cpu"), torch.ones(2, 2)
    with autocast(device, torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    for same in (None, torch.float32):
        with autocast(device, same):
            assert (x @ x).dtype == torch.float32


def test_a_type_no_device_computes_in_is_refused() -> None:
    with raises_code("device-precision", "cpu", "int8"):
        autocast(choose_device("cpu"), torch.int8)


def test_float32_products_keep_all_digits_whoever_computes_them() -> None:
    assert device.products_are_exact()
    with torch.autocast("cpu", torch.bfloat16):
        assert not device.products_are_exact()


@pytest.mark.parametrize(("amd", "exact", "chosen"), [(True, True, True), (True, False, False), (False, True, False)])
def test_onednn_computes_products_where_it_is_faster_and_exact(
    amd: bool, exact: bool, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_has_amd_avx512", lambda: amd)
    monkeypatch.setattr(device, "products_are_exact", lambda: exact)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert device.use_fast_exact_products() == chosen
        assert torch.get_float32_matmul_precision() == ("medium" if chosen else "highest")
        torch.set_float32_matmul_precision("high")  # the user's own choice stays
        assert not device.use_fast_exact_products()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_memory_is_read_where_the_system_tells() -> None:
    memory = main_memory()
    assert memory.total > 2**28
    assert 0 < memory.available <= memory.total


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_order_and_without_gradients(count: int) -> None:
    with all_cores(CPU, count) as workers:
        found = list(workers.map(lambda item: (item * item, torch.is_grad_enabled()), range(20)))
    assert found == [(item * item, False) for item in range(20)]


def test_workers_are_threads_of_their_own_with_a_share_of_the_cores() -> None:
    before = torch.get_num_threads()
    gate = threading.Barrier(3, timeout=60)

    def look(_: int) -> tuple[int, int]:
        gate.wait()  # nobody goes on before all are here
        return threading.get_ident(), torch.get_num_threads()

    with all_cores(CPU, 3) as workers:
        seen = list(workers.map(look, range(3)))
    assert len({ident for ident, _ in seen}) == 3
    assert {threads for _, threads in seen} == {max(1, before // 3)}
    assert torch.get_num_threads() == before


def test_a_failure_is_passed_on_and_the_threads_restored() -> None:
    before = torch.get_num_threads()

    def fail(item: int) -> int:
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"), all_cores(CPU, 2) as workers:
        list(workers.map(fail, range(4)))
    assert torch.get_num_threads() == before


def test_alone_it_works_in_place() -> None:
    assert list(Workers().map(lambda _: threading.current_thread(), [0])) == [threading.current_thread()]
    with all_cores(torch.device("meta"), 4) as workers:
        assert list(workers.map(lambda _: threading.current_thread(), [0])) == [threading.current_thread()]
