import pytest
from hypothesis import given
from hypothesis import strategies as st

from emat.training.schedule import FLOOR, rate_at
from emat.training.settings import SCHEDULES


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
