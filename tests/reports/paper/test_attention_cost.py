"""What a training task costs: the plain formulas against each other, and costs that are kept."""

from pathlib import Path

import pytest
import torch

from emat.model import build
from emat.model.plain import FORMS, PlainForm, plain_forward
from emat.reports.paper import attention_cost
from emat.reports.paper.attention_cost import (
    FILLED,
    IN_CHUNKS,
    LEFT_OUT,
    AttentionCase,
    StepCost,
    measure_costs,
    square_mask,
    step_cost,
)


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cost, "QUERY_SIDES", (2, 4))
    monkeypatch.setattr(attention_cost, "CHUNKED_SIDES", (2, 4))


def test_leaving_masked_tokens_out_saves_memory_unless_the_mask_covers_everything() -> None:
    bytes_of = {
        (masking, cover): step_cost(AttentionCase("emat", masking), cover).bytes
        for masking in (FILLED, LEFT_OUT)
        for cover in (0.1, 1.0)
    }
    assert bytes_of[LEFT_OUT, 0.1] < 0.3 * bytes_of[FILLED, 0.1]
    assert bytes_of[FILLED, 0.1] == pytest.approx(bytes_of[FILLED, 1.0])
    assert bytes_of[LEFT_OUT, 1.0] == pytest.approx(bytes_of[FILLED, 1.0], rel=0.3)


def test_memory_at_the_papers_size_is_extended_from_two_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    case = AttentionCase("emat", LEFT_OUT)
    monkeypatch.setattr(attention_cost, "QUERY_SIDES", (8, 11))
    monkeypatch.setattr(attention_cost, "PAPER_GRID", 14)
    measured, _ = attention_cost._step(case, 0.2, 14)
    assert step_cost(case, 0.2).bytes == pytest.approx(measured, rel=0.05)


def test_costs_are_kept_and_damaged_ones_measured_again(tmp_path: Path) -> None:
    kept, case = tmp_path / "costs.json", (AttentionCase("cst", IN_CHUNKS), 0.1)
    measured: list[int] = []

    def watch(left: list[tuple[AttentionCase, float]]) -> list[tuple[AttentionCase, float]]:
        measured.append(len(left))
        return left

    first = measure_costs([case], kept, watch)
    assert measure_costs([case], kept, watch) == first
    kept.write_text("{")
    assert isinstance(measure_costs([case], kept, watch)[case], StepCost)
    assert measured == [1, 0, 1]


def test_filling_and_leaving_out_are_the_same_function() -> None:
    torch.manual_seed(0)
    network = build("emat", 6)
    query, support = (torch.randn(2, 6, 1 + side**2, 8) for side in (4, 20))
    masks = torch.stack([square_mask(0.1, 60), square_mask(0.5, 60)])
    weights = dict(network.named_parameters())
    form = FORMS["emat"]
    dense = PlainForm(form.support_grid, form.pools, dense=True)
    for filled, left_out in zip(
        plain_forward(dense, weights, query, support, masks),
        plain_forward(form, weights, query, support, masks),
        strict=True,
    ):
        assert filled is not None
        assert left_out is not None
        torch.testing.assert_close(filled, left_out, atol=1e-5, rtol=1e-4)
