"""What holds here of what the paper finds: differences on the same tasks, beside the published ones."""

from dataclasses import replace

import pytest

from emat.reports.paper.attention_cost import TYPICAL_COVER, StepCost
from emat.reports.paper.findings import COST_CASES, findings, gain_between, gain_over
from emat.reports.paper.measuring import MeasuringPlan, make_plan
from emat.reports.paper.parts import CURVES, FILTERED, SMALL, THREE_SETTINGS, UNFILTERED, choose_parts


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
    # The lists are not the published ones, and CST* is missing.
    assert beginnings == ["Settings", "Object size", "Theta", "Ways", "Memory"]
    assert "has accuracy " in said[0]
    assert "82.7, 82.9, 81.2 in the paper" in said[0]
    assert "takes 25% of the memory" in said[-1]


def test_without_measurements_nothing_is_found(plan: MeasuringPlan) -> None:
    empty = make_plan(choose_parts("pascal"), [], plan.ledger.tasks, plan.ledger.folders[0], "cpu")
    assert findings(empty.ledger, {}) == []
    assert empty.ledger.common_tasks(["EMAT"], THREE_SETTINGS) == ()


def test_what_theta_and_more_ways_change_is_said_on_the_same_tasks(plan: MeasuringPlan) -> None:
    found = findings(plan.ledger, {})
    (theta,) = [each for each in found if each.startswith("Theta:")]
    (ways,) = [each for each in found if each.startswith("Ways:")]
    gain = gain_between(plan.ledger, ("EMAT", FILTERED[0]), ("EMAT", UNFILTERED[0]))
    assert gain is not None
    assert f"changes EMAT's accuracy {gain.words('accuracy')}, " in theta
    means = [plan.ledger.mean("EMAT", need) for need in CURVES]
    shown = ", ".join(f"{100 * (mean.scores['miou'] or 0):.1f}" for mean in means if mean is not None)
    assert f"mIoU {shown}, which is " in ways
    assert "over Prototype" in ways


def test_a_step_of_the_ablation_is_compared_on_its_own_folds(plan: MeasuringPlan) -> None:
    ledger = plan.ledger
    methods = {"EMAT": ledger.methods["EMAT"], "EMAT-ME-LD": {0: ledger.methods["EMAT"][0]}}
    steps = [each for each in findings(replace(ledger, methods=methods, _summaries={}), {}) if "Ablation" in each]
    none = "accuracy +0.0 (+0.0 to +0.0) here, +0.5 in the paper on all folds"  # both are the same head
    assert steps[0].startswith(f"Ablation, from EMAT-ME-LD to EMAT, 2-way 1-shot, fold 0 only: {none}; mIoU")
    assert len(steps) == 2
    assert not [each for each in findings(ledger, {}) if "Ablation" in each]
