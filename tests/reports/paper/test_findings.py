"""What holds here of what the paper finds: differences on the same tasks, beside the published ones."""

import pytest

from emat.reports.paper.attention_cost import TYPICAL_COVER, StepCost
from emat.reports.paper.findings import COST_CASES, findings, gain_over
from emat.reports.paper.measuring import MeasuringPlan, make_plan
from emat.reports.paper.parts import SMALL, THREE_SETTINGS, choose_parts


def test_a_gain_is_the_difference_of_the_means_with_a_paired_interval(plan: MeasuringPlan) -> None:
    ledger = plan.ledger
    gain = gain_over(ledger, "EMAT", "Prototype", SMALL)
    assert gain is not None
    assert gain.folds == (0, 1, 2, 3)
    means = [ledger.mean(label, SMALL) for label in ("EMAT", "Prototype")]
    assert means[0] is not None
    assert means[1] is not None
    for score, value in gain.points.items():
        scores = [mean.scores[score] for mean in means if mean is not None]
        assert value == pytest.approx(100 * (scores[0] - scores[1]), abs=1e-3)  # type: ignore[operator]
        low, high = gain.intervals[score]
        assert low <= high
    same = gain_over(ledger, "EMAT", "EMAT", SMALL)
    assert same is not None
    assert same.words("miou") == "+0.0 (+0.0 to +0.0)"
    assert gain_over(ledger, "EMAT", "CST*", SMALL) is None


def test_each_finding_that_can_be_judged_has_a_sentence(plan: MeasuringPlan) -> None:
    costs = {
        (case, TYPICAL_COVER): StepCost(case.method, case.masking, TYPICAL_COVER, size, 1.0)
        for case, size in zip(COST_CASES, (8e9, 2e9), strict=True)
    }
    said = findings(plan.ledger, costs)
    beginnings = [each.split(":")[0] for each in said]
    assert beginnings == ["Settings", "Object size", "Memory"]  # the lists are not the published ones, CST* is missing
    assert "has accuracy " in said[0]
    assert "82.7, 82.9, 81.2 in the paper" in said[0]
    assert "takes 25% of the memory" in said[2]


def test_without_measurements_nothing_is_found(plan: MeasuringPlan) -> None:
    empty = make_plan(choose_parts("pascal"), [], plan.ledger.tasks, plan.ledger.folders[0], "cpu")
    assert findings(empty.ledger, {}) == []
    assert empty.ledger.common_tasks(["EMAT"], THREE_SETTINGS) is None
