from hypothesis import given
from hypothesis import strategies as st

from emat.training.plan import Plan

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
