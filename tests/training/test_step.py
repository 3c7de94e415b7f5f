import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from emat.training.options import SCHEDULES
from emat.training.step import FLOOR, Plan, WeightAverage, rate_at

plans = st.builds(Plan, st.integers(1, 40), st.integers(1, 12), st.integers(1, 200))


@given(plans, st.integers(1, 5))
def test_every_task_is_taken_once_by_one_process(plan: Plan, processes: int) -> None:
    taken = [
        (epoch, index)
        for epoch in range(plan.epochs)
        for step in range(plan.steps(epoch))
        for rank in range(processes)
        for index in plan.share(epoch, step, rank, processes)
    ]
    assert len(taken) == len(set(taken)) == plan.total
    assert all(0 <= index < plan.per_epoch for _, index in taken)


@given(plans, st.integers(1, 5))
def test_a_step_has_the_same_tasks_whatever_the_process_count(plan: Plan, processes: int) -> None:
    shares = [set(plan.share(0, 0, rank, processes)) for rank in range(processes)]
    assert set.union(*shares) == set(plan.tasks(0, 0))


@given(plans)
def test_steps_are_counted_through(plan: Plan) -> None:
    assert sum(plan.steps(epoch) for epoch in range(plan.epochs)) == plan.total_steps
    assert plan.step_before(0) == 0


@given(st.sampled_from(SCHEDULES), st.integers(1, 300), st.integers(0, 50))
def test_a_rate_is_above_zero_and_never_above_its_peak(schedule: str, steps: int, warmup: int) -> None:
    rates = [rate_at(step, steps, 0.3, schedule, warmup) for step in range(steps)]
    assert all(0 < rate <= 0.3 * (1 + 1e-12) for rate in rates)


def test_constant_stays() -> None:
    assert {rate_at(step, 9, 0.5, "constant") for step in range(9)} == {0.5}


def test_cosine_falls_all_the_way() -> None:
    rates = [rate_at(step, 50, 1.0, "cosine") for step in range(50)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1.0
    assert rates[-1] == pytest.approx(FLOOR)


def test_one_cycle_rises_then_falls() -> None:
    rates = [rate_at(step, 101, 1.0, "one-cycle") for step in range(101)]
    peak = rates.index(max(rates))
    assert peak == 30
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_warm_up_rises_evenly_to_the_peak() -> None:
    assert [rate_at(step, 10, 1.0, "constant", warmup=3) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_the_average_follows_its_formula() -> None:
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(0.0)
    average = WeightAverage(layer, 0.9)
    expected = 0.0
    for step in range(200):
        with torch.no_grad():
            layer.weight.fill_(float(step))
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    torch.testing.assert_close(average.tensors["weight"], torch.full((1, 1), expected))


def test_inside_the_block_the_average_is_in_place_and_after_it_the_weights_are_back() -> None:
    layer = nn.Linear(2, 2)
    average = WeightAverage(layer, 0.5)
    start = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.add_(1.0)
    moved = layer.weight.detach().clone()
    with average.in_place():
        assert torch.equal(layer.weight, start)
    assert torch.equal(layer.weight, moved)


def test_frozen_parameters_are_not_averaged() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    assert set(WeightAverage(layer, 0.5).tensors) == {"weight"}


def test_without_decay_the_weights_are_their_own_average() -> None:
    layer = nn.Linear(2, 2)
    average = WeightAverage(layer, 0.0)
    average.update(0)
    with average.in_place():
        assert average.tensors == {}


def test_an_average_that_was_not_kept_starts_from_the_weights() -> None:
    layer = nn.Linear(2, 2)
    average = WeightAverage(layer, 0.5)
    with torch.no_grad():
        layer.weight.add_(1.0)
    average.restore({})
    assert torch.equal(average.tensors["weight"], layer.weight)
