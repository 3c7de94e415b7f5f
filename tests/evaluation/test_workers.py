"""Workers keep the order, share PyTorch's threads, and leave them as they were."""

import threading

import pytest
import torch

from emat.evaluation.workers import Workers, all_cores

CPU = torch.device("cpu")


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
