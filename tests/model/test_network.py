"""The network against golden tensors, against the plain oracle, and against the laws it must obey."""

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from emat.errors import EmatError
from emat.model import FORMS, Network, Output, Shape, build, load_public
from emat.model import attention as attention_module
from emat.model.network import NO_FOREGROUND
from emat.model.plain import FORMS as PLAIN_FORMS
from emat.model.plain import PlainForm, plain_forward
from tests.model.tiny import CHANNELS, Batch, tiny_batch
from tests.raises import raises_code

SMALL = Path(__file__).parents[1] / "parity" / "small.json"
METHODS = sorted(FORMS)
PARAMETERS = {
    "emat": 86_020,
    "emat-s": 74_098,
    "cst": 366_004,
    "cst-large": 366_004,
    "emat-me": 366_004,
    "emat-me-ld": 404_484,
}


def as_channels(tokens: Tensor, heads: int = 6) -> Tensor:
    """Golden tokens (B, layers, 1 + T, width) as (B, heads * layers, 1 + T, width / heads), head-major."""
    batch, layers, count, width = tokens.shape
    split = tokens.view(batch, layers, count, heads, width // heads).permute(0, 3, 1, 2, 4)
    return split.reshape(batch, heads * layers, count, width // heads)


def by_rule(name: str, shape: torch.Size) -> Tensor:
    """A weight as small.json's rule makes it from its public name."""
    x = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    x = x / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.5 + 0.3 * x
    return torch.from_numpy(x.astype(np.float32))


def tiny(method: str, dtype: torch.dtype = torch.float32) -> Network:
    torch.manual_seed(3)
    net = build(method, CHANNELS).to(dtype)
    with torch.no_grad():  # norms away from their start at 1 and 0, so that a swapped pair shows
        for parameter in net.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return net


def scalar(out: Output) -> Tensor:
    """A number that every output element takes part in with a weight of its own."""
    weights = torch.linspace(-1, 1, out.masks.numel(), dtype=out.masks.dtype).view_as(out.masks)
    total = (out.masks * weights).sum()
    return total if out.presence is None else total + (out.presence * torch.tensor([1.0, -0.7])).sum()


@pytest.mark.parametrize("case", json.loads(SMALL.read_text())["cases"], ids=lambda case: case["method"])
def test_small_golden_case_is_reproduced(case: dict[str, object]) -> None:
    net = build(str(case["method"]), 72)
    load_public(net, {name: by_rule(name, value.shape) for name, value in net.state_dict().items()})
    common = 0.7 * np.random.RandomState(0).standard_normal((1, 12, 1, 96))
    query, support = (
        as_channels(torch.from_numpy(np.random.RandomState(seed).standard_normal((2, 12, 37, 96)) + common).float())
        for seed in (1, 2)
    )
    masks = torch.zeros(2, 140, 140)
    masks[0, 20:70, 35:120] = 1
    masks[1, 80:90, 5:60] = 1
    with torch.no_grad():
        out = net(query, support, masks)
    assert list(out.masks.shape) == case["masks_shape"]
    torch.testing.assert_close(out.masks.flatten(), torch.tensor(case["masks"]), atol=1e-4, rtol=1e-4)
    if case["presence"] is None:
        assert out.presence is None
    else:
        torch.testing.assert_close(out.presence, torch.tensor(case["presence"]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("method", "file"),
    [
        ("emat", "emat_seed100"),
        ("emat-s", "emat_s_seed110"),
        ("cst", "cst_seed120"),
        ("cst-large", "cst_large_seed130"),
    ],
)
def test_golden_tensors_are_reproduced(shared: Path, method: str, file: str) -> None:
    tensors = load_file(shared / "parity" / f"{file}.safetensors")
    net = build(method, 72)
    load_public(net, {name: value for name, value in tensors.items() if name.startswith("learner.")})
    out = net(as_channels(tensors["in.query"]), as_channels(tensors["in.support"]), tensors["in.masks"])
    torch.testing.assert_close(out.masks, tensors["out.masks"], atol=1e-4, rtol=1e-4)
    if "out.labels" in tensors:
        torch.testing.assert_close(out.presence, tensors["out.labels"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_parameter_counts_are_the_papers(method: str) -> None:
    assert sum(p.numel() for p in build(method, 72).parameters()) == PARAMETERS[method]


@pytest.mark.parametrize("method", METHODS)
def test_values_and_gradients_equal_the_plain_formula(method: str) -> None:
    net, batch = tiny(method, torch.float64), tiny_batch(torch.float64)
    if method == "emat-s":  # what a vanished mask gives there is a definition of its own, tested below
        batch = Batch(batch.query[::2], batch.support[::2], batch.masks[::2])
    inputs = [batch.query.requires_grad_(), batch.support.requires_grad_(), *net.parameters()]
    ours = net(batch.query, batch.support, batch.masks)
    presence, masks = plain_forward(
        PLAIN_FORMS[method], dict(net.named_parameters()), batch.query, batch.support, batch.masks
    )
    torch.testing.assert_close(ours.masks, masks)
    torch.testing.assert_close(ours.presence, presence)
    for ours_grad, plain_grad in zip(
        torch.autograd.grad(scalar(ours), inputs),
        torch.autograd.grad(scalar(Output(presence, masks)), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours_grad, plain_grad, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_every_parameter_gets_a_finite_gradient_and_the_tokens_none(method: str) -> None:
    net, batch = tiny(method), tiny_batch()
    scalar(net(batch.query, batch.support, batch.masks)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    assert batch.query.grad is None


@pytest.mark.parametrize("method", METHODS)
def test_results_are_the_same_with_and_without_gradients(method: str) -> None:
    net, batch = tiny(method), tiny_batch()
    with torch.no_grad():
        without = net(batch.query, batch.support, batch.masks)
    torch.testing.assert_close(net(batch.query, batch.support, batch.masks).masks, without.masks)


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_equals_its_singles_though_masks_keep_different_numbers_of_tokens(method: str) -> None:
    net, batch = tiny(method), tiny_batch()
    together = net(batch.query, batch.support, batch.masks)
    for i in range(3):
        alone = net(batch.query[i : i + 1], batch.support[i : i + 1], batch.masks[i : i + 1])
        torch.testing.assert_close(alone.masks[0], together.masks[i])


@pytest.mark.parametrize("workspace", [1, 300_000, 2**30])
@pytest.mark.parametrize("method", ["emat", "cst"])
def test_any_chunk_size_gives_the_same(method: str, workspace: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, batch = tiny(method, torch.float64), tiny_batch(torch.float64, grid=3)
    parameters = list(net.parameters())
    expected = net(batch.query, batch.support, batch.masks)
    expected_grads = torch.autograd.grad(scalar(expected), parameters)
    monkeypatch.setattr(attention_module, "workspace_bytes", lambda device: workspace)
    monkeypatch.setattr(attention_module, "_within_range", lambda *_: False)  # no more than another way to compute
    monkeypatch.setattr("emat.model.post_attention.workspace_bytes", lambda device: max(400_000, workspace))
    monkeypatch.setattr(attention_module, "SMALL_PAIR", 0)
    monkeypatch.setattr(attention_module, "KEPT_SHARE", 0)
    monkeypatch.setattr("emat.model.post_attention.SMALL_PAIR", 0)
    out = net(batch.query, batch.support, batch.masks)
    torch.testing.assert_close(out.masks, expected.masks)
    for grad, expected_grad in zip(torch.autograd.grad(scalar(out), parameters), expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize("method", METHODS)
def test_permuting_channels_together_with_the_weights_changes_nothing(method: str) -> None:
    net, batch = tiny(method, torch.float64), tiny_batch(torch.float64)
    before = net(batch.query, batch.support, batch.masks)
    order = torch.randperm(CHANNELS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.startswith("corrtransformer.0.attn") and parameter.ndim > 3 and parameter.shape[1] == CHANNELS:
                parameter.copy_(parameter[:, order])
    after = net(batch.query[:, order], batch.support[:, order], batch.masks)
    torch.testing.assert_close(after.masks, before.masks)


@settings(max_examples=20)
@given(side=st.integers(3, 300), top=st.floats(0, 1), left=st.floats(0, 1), extent=st.floats(0, 1))
def test_masks_of_any_size_and_place_give_finite_logits(side: int, top: float, left: float, extent: float) -> None:
    net, batch = tiny("emat"), tiny_batch()
    mask = torch.zeros(1, side, 2 * side)
    y, x, size = int(top * side), int(left * 2 * side), int(extent * side)
    mask[:, y : y + size, x : x + size] = 1
    with torch.no_grad():
        assert net(batch.query[:1], batch.support[:1], mask).masks.isfinite().all()


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.float64])
def test_masks_may_be_of_any_type(kind: torch.dtype) -> None:
    net, batch = tiny("emat"), tiny_batch()
    with torch.no_grad():
        expected = net(batch.query, batch.support, batch.masks)
        torch.testing.assert_close(net(batch.query, batch.support, batch.masks.to(kind)).masks, expected.masks)


def test_without_class_token_a_vanished_mask_means_no_foreground() -> None:
    net, batch = tiny("emat-s"), tiny_batch()
    masks = net(batch.query, batch.support, batch.masks).masks
    assert (masks[1, 0] == NO_FOREGROUND[0]).all()
    assert (masks[1].softmax(dim=0)[1] < 1e-6).all()
    assert masks[0].std() > 0
    alone = net(batch.query[1:2], batch.support[1:2], batch.masks[1:2])
    assert alone.presence is None
    torch.testing.assert_close(alone.masks[0], masks[1])


def test_one_query_compared_with_many_supports_equals_the_batch() -> None:
    net, batch = tiny("emat"), tiny_batch()
    query = net.encode_query(batch.query[0])
    supports = [net.encode_support(batch.support[i], batch.masks[i]) for i in range(3)]
    out = net.compare(query, supports)
    expected = net(batch.query[:1].expand(3, -1, -1, -1), batch.support, batch.masks)
    torch.testing.assert_close(out.masks, expected.masks)
    torch.testing.assert_close(out.presence, expected.presence)


def test_photos_need_not_be_square() -> None:
    net = tiny("emat")
    query, support = torch.randn(1, CHANNELS, 1 + 12, 6), torch.randn(1, CHANNELS, 1 + 10, 6)
    out = net(query, support, torch.ones(1, 20, 50), query_grid=(3, 4), support_grid=(2, 5))
    assert out.masks.shape == (1, 2, 6, 8)
    with raises_code("tensor-shape", "12", "query"):
        net(query, support, torch.ones(1, 20, 50))


def test_autocast_to_bfloat16_stays_close_to_float32() -> None:
    # Virtual machines may name AMX among their instructions and yet refuse it: the process then dies.
    product = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", product], capture_output=True).returncode:
        pytest.skip("PyTorch cannot multiply bfloat16 on this processor")
    net, batch = tiny("emat"), tiny_batch()
    expected = net(batch.query, batch.support, batch.masks)
    with torch.autocast("cpu", torch.bfloat16):
        out = net(batch.query, batch.support, batch.masks)
        loss = scalar(Output(out.presence.float(), out.masks.float()))
    loss.backward()
    assert (out.masks.float() - expected.masks).abs().max() < 0.1
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


NAN_QUERY = torch.full((3, 1, 1, 1), torch.nan)
BAD = [
    ("tensor-shape", "query", lambda b: (b.query[0], b.support, b.masks)),
    ("wrong-backbone", "5", lambda b: (b.query[:, :5], b.support, b.masks)),
    ("wrong-backbone", "4", lambda b: (b.query[..., :4], b.support, b.masks)),
    ("mask-shape", "", lambda b: (b.query, b.support, b.masks[0])),
    ("tensor-shape", "2 masks", lambda b: (b.query, b.support, b.masks[:2])),
    ("tensor-shape", "24 support", lambda b: (b.query, b.support[:, :, :-1], b.masks)),
    ("not-finite", "query", lambda b: (b.query + NAN_QUERY, b.support, b.masks)),
    ("tensor-type", "support", lambda b: (b.query, b.support.long(), b.masks)),
    ("mask-shape", "", lambda b: (b.query, b.support, b.masks[:, :0])),
]


@pytest.mark.parametrize(("code", "value", "inputs"), BAD)
def test_bad_input_gets_one_clear_sentence(
    code: str, value: str, inputs: Callable[[Batch], tuple[Tensor, ...]]
) -> None:
    with raises_code(code, value):
        tiny("emat")(*inputs(tiny_batch()))


def test_unknown_methods_are_refused_with_the_choice() -> None:
    with raises_code("unknown-method", "'unet'", "emat, emat-s"):
        build("unet", 72)
    with raises_code("bad-number"):
        build("emat", 0)


def test_missing_unknown_and_misshapen_tensors_are_named_and_nothing_is_loaded() -> None:
    net = build("emat", 6)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tensors = {name: value + 1 for name, value in net.state_dict().items()}
    del tensors["linear.0.bias"]
    tensors["surprise"] = torch.zeros(2)
    tensors["linear.1.bias"] = torch.zeros(3)
    with pytest.raises(EmatError) as error:
        load_public(net, tensors)
    for part in ("missing linear.0.bias", "unknown surprise", "linear.1.bias is (3,) instead of (32,)"):
        assert part in str(error.value)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name])


@pytest.mark.parametrize(("side", "plain"), [(8, (1, 2)), (12, (1, 3))])
def test_another_support_grid_is_the_same_formula(side: int, plain: tuple[int, int]) -> None:
    torch.manual_seed(0)
    net = build("emat", channels=6, shape=Shape(support_grid=side)).double()
    query, support = torch.randn(2, 2, 6, 1 + 25, 8, dtype=torch.float64)
    masks = torch.zeros(2, 30, 30, dtype=torch.float64)
    masks[:, 4:20, 3:17] = 1
    out = net(query, support, masks)
    presence, mask_logits = plain_forward(PlainForm(side, plain), dict(net.named_parameters()), query, support, masks)
    torch.testing.assert_close(out.masks, mask_logits)
    torch.testing.assert_close(out.presence, presence)


def test_sizes_that_do_not_fit_are_refused_in_a_sentence() -> None:
    with raises_code("bad-number", "10"):
        build("emat", channels=6, shape=Shape(support_grid=10))
    with raises_code("bad-number", "16"):
        build("emat", channels=6, shape=Shape(widths=(64, 20)))
    assert build("emat", channels=6, shape=Shape(widths=(32, 16))).form.widths == (32, 16)
