"""What a training task costs: memory and processor time of a forward and backward pass at the paper's size.

Memory is the peak of what PyTorch allocates, so it does not depend on how busy the machine is. Query tokens do not mix
in the attention layers, so memory and time are a constant and a part that is proportional to their number: both are
measured with few query tokens and extended to the paper's 2500.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from emat.model import build
from emat.model.plain import FORMS, PlainForm, plain_forward
from emat.outputs import write_text

PAPER_CHANNELS, PAPER_WIDTH, PAPER_GRID, PAPER_SIZE = 72, 64, 50, 700  # DINOv2 ViT-S at 700 pixels
QUERY_SIDES = (5, 9)  # 25 and 81 query tokens instead of 2500
CHUNKED_SIDES = (20, 28)  # emat keeps small pairs whole, so its chunks show with more tokens only
TASKS_PER_GPU = 3  # paper: a batch of 9 on three GPUs
GB = 10**9
TYPICAL_COVER = 0.2  # of a photo by an object; a choice
COVERS = (0.02, 0.1, 0.2, 0.4, 0.7, 1.0)
FILLED, LEFT_OUT, IN_CHUNKS = "filled (as in CST)", "left out (as in EMAT)", "left out, in chunks (this package)"


@dataclass(frozen=True)
class AttentionCase:
    """A network and how it treats the tokens that the mask hides."""

    method: str  # a key of `emat.model.FORMS`
    masking: str  # FILLED, LEFT_OUT or IN_CHUNKS

    @property
    def support_tokens(self) -> int:
        """t_s of the first layer."""
        return FORMS[self.method].support_grid ** 2 + 1


@dataclass(frozen=True)
class StepCost:
    """What one task costs whose support mask covers a share of the photo."""

    method: str
    masking: str
    cover: float
    bytes: float
    seconds: float  # of one processor core

    def batch_gigabytes(self) -> float:
        """Memory of a GPU's part of a batch."""
        return TASKS_PER_GPU * self.bytes / GB


Costs: TypeAlias = Mapping[tuple[AttentionCase, float], StepCost]  # by case and the share that the mask covers
TABLE_2_CASES = {  # the rows of the paper's Table 2
    "CST* 145": AttentionCase("cst", FILLED),
    "CST* 325": AttentionCase("cst-large", FILLED),
    "CST* 401": AttentionCase("emat-me", FILLED),
    "EMAT ME": AttentionCase("emat-me", LEFT_OUT),
    "EMAT ME LD": AttentionCase("emat-me-ld", LEFT_OUT),
    "EMAT ME LD PE": AttentionCase("emat", LEFT_OUT),
}
EQUAL_TOKENS = (
    AttentionCase("emat-me", FILLED),
    AttentionCase("emat-me", LEFT_OUT),
    AttentionCase("emat", FILLED),
    AttentionCase("emat", LEFT_OUT),
    AttentionCase("emat", IN_CHUNKS),
)
DENSE_CASES = (AttentionCase("emat", FILLED), AttentionCase("emat", LEFT_OUT), AttentionCase("emat", IN_CHUNKS))


def measure_costs(
    cases: Iterable[tuple[AttentionCase, float]],
    kept_in: Path | None = None,
    watch: Callable[[list[tuple[AttentionCase, float]]], Iterable[tuple[AttentionCase, float]]] = iter,
) -> dict[tuple[AttentionCase, float], StepCost]:
    """Measure the cost of each case at a mask cover, or read it from where it was kept.

    Args:
        cases: Cases and the share of the photo that their support mask covers.
        kept_in: A JSON file for costs that were measured before on this machine and PyTorch.
        watch: Is given what is left to measure, and may show progress.
    """
    wanted = list(dict.fromkeys(cases))
    kept = _read(kept_in)
    for case, cover in watch(costs_left(wanted, kept_in)):
        kept[case, cover] = step_cost(case, cover)
        _write(kept_in, kept)
    return {case: kept[case] for case in wanted}


def costs_left(cases: Iterable[tuple[AttentionCase, float]], kept_in: Path | None) -> list[tuple[AttentionCase, float]]:
    """Return the cases that are not kept in the file, and have to be measured."""
    kept = _read(kept_in)
    return [case for case in dict.fromkeys(cases) if case not in kept]


def step_cost(case: AttentionCase, cover: float) -> StepCost:
    """Measure one task: a forward and backward pass from tokens to logits."""
    sides = CHUNKED_SIDES if case.masking == IN_CHUNKS else QUERY_SIDES
    few, many = (_step(case, cover, side) for side in sides)
    tokens = [side**2 for side in sides]
    share = (PAPER_GRID**2 - tokens[0]) / (tokens[1] - tokens[0])  # how far the paper's number is along the line
    memory, seconds = (max(a + share * (b - a), b) for a, b in zip(few, many, strict=True))
    return StepCost(case.method, case.masking, cover, memory, seconds)


def _step(case: AttentionCase, cover: float, query_side: int) -> tuple[float, float]:
    """Return the peak bytes and the processor seconds with `query_side`² query tokens."""
    generator = torch.Generator().manual_seed(0)
    # Support tokens come at the size that the network reduces them to: reducing them takes a constant that would hide
    # what grows with the query tokens.
    sides = (query_side, FORMS[case.method].support_grid)
    query, support = (torch.randn(1, PAPER_CHANNELS, 1 + side**2, PAPER_WIDTH, generator=generator) for side in sides)
    mask = square_mask(cover)[None]
    torch.manual_seed(0)
    network = build(case.method, PAPER_CHANNELS)

    def forward() -> tuple[Tensor | None, Tensor]:
        if case.masking == IN_CHUNKS:
            out = network(query, support, mask)
            return out.presence, out.masks
        form: PlainForm = replace(FORMS[case.method], dense=case.masking == FILLED)
        return plain_forward(form, dict(network.named_parameters()), query, support, mask)

    def step() -> None:
        presence, masks = forward()
        loss = masks.square().mean() + (0 if presence is None else presence.square().mean())
        loss.backward()

    started = time.process_time()
    step()
    seconds = time.process_time() - started
    network.zero_grad()
    return float(_peak_bytes(step)), seconds


def square_mask(cover: float, side: int = PAPER_SIZE) -> Tensor:
    """Return a mask (side, side) with a square in the middle that covers this share of it."""
    mask = torch.zeros(side, side)
    length = round(side * cover**0.5)
    start = (side - length) // 2
    mask[start : start + length, start : start + length] = 1
    return mask


def _peak_bytes(function: Callable[[], None]) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to standard error when it starts
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()  # negative when memory is given back
        peak = max(peak, held)
    return peak


def _machine() -> dict[str, str]:
    return {"processor": platform.processor() or platform.machine(), "torch": torch.__version__}


def _read(path: Path | None) -> dict[tuple[AttentionCase, float], StepCost]:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path else {}
        costs = [StepCost(**row) for row in content["costs"]] if content.get("machine") == _machine() else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        costs = []  # measured again
    return {(AttentionCase(cost.method, cost.masking), cost.cover): cost for cost in costs}


def _write(path: Path | None, costs: dict[tuple[AttentionCase, float], StepCost]) -> None:
    if path is not None:
        rows = [asdict(cost) for cost in costs.values()]
        write_text(path, json.dumps({"machine": _machine(), "costs": rows}, indent=1) + "\n")
