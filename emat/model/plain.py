"""The network in plain steps, for tests, for comparisons of time and memory, and for exported graphs.

`emat.model.network` computes the same and is faster, but what it does depends on the values of its inputs, which an
exported graph cannot express. There are two forms here:

- `plain_forward` follows the paper, from tokens and masks: the full correlation, convolutions and pooling, and then
  attention over the tokens that the mask keeps (as in EMAT) or over all tokens with masked logits (as in CST). It takes
  weights by their public names, from a network's state dict or a published checkpoint.
- `plain_compare` starts from the encoding of a support, as a fitted segmenter holds it, and takes several queries.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.model.encoding import Grid, SupportEncoding
from emat.model.layers import AttentionLayer, mask_branch, presence_branch
from emat.model.network import NO_FOREGROUND, Form, Network
from emat.model.post_attention import PostAttentionWeights, plain_post_attention
from emat.model.projections import Projections

ATTENTION_HEADS = 8
NORM_GROUPS = 4
MASKED_LOGIT = -1e9
LARGEST_LOGITS = 32 << 20  # bytes of attention logits that exist at once for one query in `plain_compare`


@dataclass(frozen=True)
class PlainForm:
    """What distinguishes EMAT, CST and the steps between them: grids, and pooling windows of the two layers."""

    support_grid: int
    pools: tuple[int, int]  # windows after the projection; 1 = none
    class_token: bool = True
    learned: bool = True  # strided convolutions instead of 1x1 projections
    dense: bool = False  # masked tokens stay in the computation instead of being left out

    @classmethod
    def of(cls, form: Form, dense: bool = False) -> "PlainForm":
        """Return the plain form of a network's form."""
        first, second = form.windows
        return cls(form.support_grid, (first.pool, second.pool), form.class_token, first.stride > 1, dense)


# Written down again and not taken from `network.FORMS`, so that tests compare two independent lists.
FORMS = {
    "emat": PlainForm(20, (1, 5)),
    "emat-s": PlainForm(20, (1, 5), class_token=False),
    "emat-me-ld": PlainForm(20, (1, 5)),
    "emat-me": PlainForm(20, (2, 10), learned=False),
    "cst": PlainForm(12, (4, 3), learned=False),
    "cst-large": PlainForm(18, (3, 6), learned=False),
}


def plain_forward(
    form: PlainForm, tensors: Mapping[str, Tensor], query: Tensor, support: Tensor, masks: Tensor
) -> tuple[Tensor | None, Tensor]:
    """Compare B pairs of photos.

    Args:
        form: The form of the network.
        tensors: The weights by their public names.
        query: Query tokens (B, C, 1 + T, d).
        support: Support tokens (B, C, 1 + T, d).
        masks: Support masks (B, H, W).

    Returns:
        Presence logits (B, 2), None without a class token, and mask logits (B, 2, 2h, 2w).
    """
    x = _correlation(form, query, support)  # (B, C, t_q, t_s)
    x = _layer(form, tensors, "corrtransformer.0.", x, masks, form.pools[0])
    x = _layer(form, tensors, "corrtransformer.1.", x, masks, form.pools[1])  # (B, E, t_q, 2), or 1 without class token
    for conv, norm in (("linear.0", "linear.1"), ("linear.3", "linear.4")):
        x = F.relu(_norm(tensors, norm, _conv(tensors, conv, x)))
    side = round((query.shape[2] - 1) ** 0.5)
    tokens = x.unflatten(2, (side, side)).unbind(-1)  # (B, E, h, w) each
    mask_logits = _plain_mask_branch(tensors, tokens[-1])
    if form.class_token:
        return _plain_presence_branch(tensors, tokens[0]), mask_logits
    seen = _kept_tokens(form, masks, form.support_grid**2).any(dim=1)[:, None, None, None]
    return None, torch.where(seen, mask_logits, mask_logits.new_tensor(NO_FOREGROUND)[None, :, None, None])


def _correlation(form: PlainForm, query: Tensor, support: Tensor) -> Tensor:
    batch, channels, _, width = support.shape
    side = round((support.shape[2] - 1) ** 0.5)
    image = support[:, :, 1:].transpose(2, 3).reshape(batch * channels, width, side, side)
    image = F.interpolate(image, (form.support_grid,) * 2, mode="bilinear", align_corners=True)
    tokens = image.reshape(batch, channels, width, -1).transpose(2, 3)
    if form.class_token:
        tokens = torch.cat([support[:, :, :1], tokens], dim=2)
    return F.normalize(query[:, :, 1:], dim=-1) @ F.normalize(tokens, dim=-1).transpose(2, 3)


def _conv(tensors: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.conv2d(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def _norm(tensors: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.group_norm(x, NORM_GROUPS, tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def _pool(form: PlainForm, x: Tensor, window: int) -> Tensor:
    """Average over windows of the support grid; the class token stays as it is."""
    first = 1 if form.class_token else 0
    side = round((x.shape[3] - first) ** 0.5)
    image = x[..., first:].unflatten(3, (side, side))  # (B, E, t_q, side, side)
    image = F.avg_pool3d(image, (1, window, window)).flatten(3)
    return torch.cat([x[..., :first], image], dim=3)


def _downscale(form: PlainForm, tensors: Mapping[str, Tensor], name: str, x: Tensor, window: int) -> Tensor:
    """Downscale with a strided convolution for image tokens and a 1 x 1 for the class token, then pool."""
    first = 1 if form.class_token else 0
    side = round((x.shape[3] - first) ** 0.5)
    image = x[..., first:].unflatten(3, (side, side))
    image = F.conv3d(image, tensors[f"{name}.q_seg.weight"], tensors.get(f"{name}.q_seg.bias"), stride=(1, 2, 2))
    image = F.avg_pool3d(image, (1, window, window)).flatten(3)
    if not form.class_token:
        return image
    return torch.cat([_conv(tensors, f"{name}.q_cls", x[..., :1]), image], dim=3)


def _layer(form: PlainForm, tensors: Mapping[str, Tensor], name: str, x: Tensor, masks: Tensor, window: int) -> Tensor:
    if form.learned:
        q = _downscale(form, tensors, f"{name}attn.q", x, window)
        k, v = _conv(tensors, f"{name}attn.kv", x).chunk(2, dim=1)
        residual = _norm(
            tensors,
            f"{name}attn.short_cut.1",
            _downscale(form, tensors, f"{name}attn.short_cut.0", x, window),
        )
    else:
        q, k, v = _conv(tensors, f"{name}attn.qkv", x).chunk(3, dim=1)
        q = _pool(form, q, window)
        residual = _pool(form, _conv(tensors, f"{name}attn.short_cut.0", x), window)
        residual = _norm(tensors, f"{name}attn.short_cut.2", residual)
    kept = _kept_tokens(form, masks, x.shape[3])
    if form.dense:
        attended = _attend_all(q, k, v, kept)
    else:
        attended = torch.cat([_attend_kept(q[i : i + 1], k[i : i + 1], v[i : i + 1], kept[i]) for i in range(len(x))])
    attended = F.relu(_norm(tensors, f"{name}attn.agg.0", attended))
    attended = F.relu(_norm(tensors, f"{name}attn.agg.3", _conv(tensors, f"{name}attn.agg.2", attended)))
    x = _norm(tensors, f"{name}attn.out_norm", attended + F.relu(residual))
    hidden = F.relu(_norm(tensors, f"{name}ff.ff.1", _conv(tensors, f"{name}ff.ff.0", x)))
    return _norm(tensors, f"{name}ff.out_norm", x + _conv(tensors, f"{name}ff.ff.3", hidden))


def _kept_tokens(form: PlainForm, masks: Tensor, support_tokens: int) -> Tensor:
    """Return which support tokens the attention of a layer may look at, (B, t_s) bool."""
    first = 1 if form.class_token else 0
    side = round((support_tokens - first) ** 0.5)
    small = F.interpolate(masks[:, None].float(), (side, side), mode="bilinear", align_corners=True)
    kept = small.flatten(1) > 0
    return F.pad(kept, (first, 0), value=True)


def _attend_kept(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    """Attend over the kept support tokens of one photo; returns (1, H, t_q, t_d)."""
    if not kept.any():
        return torch.zeros_like(q)
    q, k, v = _by_heads(q, k[..., kept], v[..., kept])
    weights = torch.einsum("bheqi,bheqp->bhqip", q, k).softmax(dim=-1)
    return torch.einsum("bhqip,bheqp->bheqi", weights, v).flatten(1, 2)


def _attend_all(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    """Attend over all support tokens of a batch; tokens that are not kept (B, t_s) get the logit of masked ones."""
    q, k, v = _by_heads(q, k, v)
    logits = torch.einsum("bheqi,bheqp->bhqip", q, k).masked_fill(~kept[:, None, None, None], MASKED_LOGIT)
    attended = torch.einsum("bhqip,bheqp->bheqi", logits.softmax(dim=-1), v).flatten(1, 2)
    return attended * kept.any(dim=1)[:, None, None, None]


def _by_heads(*parts: Tensor) -> Iterator[Tensor]:
    return (part.unflatten(1, (ATTENTION_HEADS, -1)) for part in parts)  # (1, heads, e, t_q, t)


def _plain_presence_branch(tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    x = F.relu(_conv(tensors, "decoder1_cls.0", x))
    x = F.relu(_conv(tensors, "decoder1_cls.2", x))
    x = F.avg_pool2d(x, 3, stride=2, padding=1)
    x = F.relu(_conv(tensors, "decoder2_cls.0", x))
    return _conv(tensors, "decoder2_cls.2", x).mean(dim=(2, 3))


def _plain_mask_branch(tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    def conv3x3(name: str, x: Tensor) -> Tensor:
        return F.conv2d(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"], padding=1)

    x = F.relu(conv3x3("decoder1_seg.0", x))
    x = F.relu(conv3x3("decoder1_seg.2", x))
    x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
    x = F.relu(conv3x3("decoder2_seg.0", x))
    return conv3x3("decoder2_seg.2", x)


def plain_compare(
    network: Network, query: Tensor, support: SupportEncoding, grid: Grid
) -> tuple[Tensor | None, Tensor]:
    """Compare B queries with one support.

    Args:
        network: The network.
        query: Unit tokens (B, C, t_q, d).
        support: The support.
        grid: Rows and columns of the query's tokens.

    Returns:
        Presence logits (B, 2), None without a class token, and mask logits (B, 2, 2h, 2w).
    """
    if support.sees_nothing:
        logits = query.new_tensor(NO_FOREGROUND)[None, :, None, None]
        return None, logits.expand(query.shape[0], 2, 2 * grid[0], 2 * grid[1])
    first, second = (cast(AttentionLayer, layer) for layer in network.corrtransformer)
    parts = []
    for part in query.split(_chunk(support), dim=2):  # along the tokens, so that the batch can have any size
        by_cell = part[:, None] @ support.cells.transpose(2, 3)[None]  # (B, P, C, n, cells)
        by_token = part @ support.kept.transpose(1, 2)[None]  # (B, C, n, k)
        parts.append(_attend_cells(first, by_cell, by_token))
    x = _finished(first, *(torch.cat(pieces, dim=2) for pieces in zip(*parts, strict=True)))
    attended = _attend_cells(second, _by_cell(second, x), x[:, :, :, support.kept_later])
    return _branches(network, _finished(second, *attended), grid)


def _attend_cells(layer: AttentionLayer, by_cell: Tensor, by_token: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the attention of one layer.

    Args:
        layer: The layer.
        by_cell: What queries and residual come from, (B, P, C, n, cells).
        by_token: What keys and values come from, (B, C, n, t), the class token first.

    Returns:
        Attended values (B, H, n, t_d) and residual (B, E, n, t_d).
    """
    projections = layer.projections()
    projected = _project(projections, by_cell, by_token)  # (B, H + E, n, t_d)
    hidden = projections.hidden
    queries, residual = projected[:, :hidden], projected[:, hidden:]
    if by_token.shape[3] == 0:
        return torch.zeros_like(queries), residual
    kv = F.conv2d(by_token, projections.w_kv[:, :, None, None], projections.b_kv)
    q, k, v = (_by_query(x) for x in (queries, kv[:, :hidden], kv[:, hidden:]))  # (B, n, heads, e, t)
    attended = v @ (k.transpose(3, 4) @ q).softmax(dim=3)  # (B, n, heads, e, t_d)
    return attended.permute(0, 2, 3, 1, 4).flatten(1, 2), residual


def _project(projections: Projections, by_cell: Tensor, by_token: Tensor) -> Tensor:
    image = F.conv2d(by_cell.flatten(1, 2), projections.w_cells[:, :, None, None], projections.b_cells)
    if projections.w_class is None:
        return image
    token = F.conv2d(by_token[:, :, :, :1], projections.w_class[:, :, None, None], projections.b_class)
    return torch.cat([token, image], dim=3)


def _by_query(x: Tensor) -> Tensor:
    """(B, H, n, t) -> (B, n, heads, H / heads, t)."""
    return x.unflatten(1, (ATTENTION_HEADS, -1)).permute(0, 3, 1, 2, 4)


def _by_cell(layer: AttentionLayer, x: Tensor) -> Tensor:
    """Average the second layer's inputs by position, (B, C, n, t_d) -> (B, P, C, n, 1)."""
    first = layer.projections().first
    image = x[:, :, :, first:].unflatten(3, (layer.window.positions, -1))
    return image.mean(dim=4, keepdim=True).permute(0, 3, 1, 2, 4)


def _finished(layer: AttentionLayer, attended: Tensor, residual: Tensor) -> Tensor:
    attn = layer.attn
    weights = PostAttentionWeights.from_modules(attn.agg, attn.short_cut[-1], attn.out_norm, layer.ff)
    shape = residual.shape[2:]
    return plain_post_attention(attended.flatten(2), residual.flatten(2), weights).unflatten(2, tuple(shape))


def _branches(network: Network, x: Tensor, grid: Grid) -> tuple[Tensor | None, Tensor]:
    x = network.linear(x).unflatten(2, grid)  # (B, E, h, w, 2)
    masks = mask_branch((network.decoder1_seg, network.decoder2_seg), x[..., -1])
    if not network.form.class_token:
        return None, masks
    return presence_branch((network.decoder1_cls, network.decoder2_cls), x[..., 0]), masks


def _chunk(support: SupportEncoding) -> int:
    """Return how many query tokens go through attention together."""
    logits = 4 * ATTENTION_HEADS * max(1, support.kept.shape[1]) * (1 + support.cells.shape[2])
    return max(1, LARGEST_LOGITS // logits)
