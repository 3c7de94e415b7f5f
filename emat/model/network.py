"""EMAT, CST and the steps between them: one family, one class, one path from tokens to logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from emat.errors import EmatError
from emat.model.correlation import Grid, QueryEncoding, SupportEncoding, encode_query, encode_support
from emat.model.downscale import Window
from emat.model.group_norm import NORM_GROUPS
from emat.model.heads import mask_head, mask_logits, presence_head, presence_logits
from emat.model.layer import AttentionLayer
from emat.model.precision import compute_dtype, without_autocast

NO_FOREGROUND = (10.0, -10.0)  # mask logits where no support token is left to look at: a certain background


@dataclass(frozen=True)
class Form:
    """What distinguishes the members of the family (paper, Sec. 4 and Tab. 3)."""

    support_grid: int  # side; t_s = side² + 1
    windows: tuple[Window, Window]  # downscaling of the two layers
    widths: tuple[int, int]  # of the two layers' outputs; the heads use the second and its half
    class_token: bool = True


_LEARNED = (Window(stride=2, pool=1), Window(stride=2, pool=5))
_SLIM, _WIDE = (64, 32), (32, 128)

FORMS: dict[str, Form] = {
    "emat": Form(20, _LEARNED, _SLIM),
    "emat-s": Form(20, _LEARNED, _SLIM, class_token=False),
    "cst": Form(12, (Window(1, 4), Window(1, 3)), _WIDE),
    "cst-large": Form(18, (Window(1, 3), Window(1, 6)), _WIDE),
    "emat-me": Form(20, (Window(1, 2), Window(1, 10)), _WIDE),
    "emat-me-ld": Form(20, _LEARNED, _WIDE),
}


@dataclass(frozen=True)
class Output:
    """Logits of B pairs. Presence is None for a network without class token (`emat-s`)."""

    presence: Tensor | None  # (B, 2): absent, present
    masks: Tensor  # (B, 2, 2h, 2w): background, foreground


class Network(nn.Module):
    """From the tokens of query and support images and the support masks to presence and mask logits.

    >>> net = build("emat", channels=12)
    >>> tokens, masks = torch.randn(2, 12, 1 + 36, 16), torch.ones(2, 50, 50)
    >>> out = net(tokens, tokens, masks)
    >>> out.presence.shape, out.masks.shape
    (torch.Size([2, 2]), torch.Size([2, 2, 12, 12]))
    """

    def __init__(self, method: str, channels: int) -> None:
        super().__init__()
        self.method, self.channels, self.form = method, channels, FORMS[method]
        first, second = self.form.widths
        class_token = self.form.class_token
        # Attributes are called as in published checkpoints, so that a state dict of ours is one of theirs.
        self.corrtransformer = nn.ModuleList(
            [
                AttentionLayer(channels, first, self.form.windows[0], class_token=class_token),
                AttentionLayer(first, second, self.form.windows[1], class_token=class_token),
            ]
        )
        blocks = [(nn.Conv2d(second, second, 1), nn.GroupNorm(NORM_GROUPS, second), nn.ReLU()) for _ in range(2)]
        self.linear = nn.Sequential(*blocks[0], *blocks[1])
        self.decoder1_seg, self.decoder2_seg = mask_head(second)
        if class_token:
            self.decoder1_cls, self.decoder2_cls = presence_head(second)

    def encode_query(self, tokens: Tensor, grid: Grid | None = None) -> QueryEncoding:
        """A query image, from its tokens (C, 1 + T, d); `grid` (rows, columns) where it is not square."""
        self._check_channels(tokens, dim=0)
        return encode_query(self._in_own_precision(tokens), grid)

    def encode_support(self, tokens: Tensor, mask: Tensor, grid: Grid | None = None) -> SupportEncoding:
        """A support image with one class's mask (H, W), of any size, from its tokens (C, 1 + T, d)."""
        self._check_channels(tokens, dim=0)
        form = self.form
        return encode_support(
            self._in_own_precision(tokens),
            mask,
            grid,
            side=form.support_grid,
            windows=form.windows,
            class_token=form.class_token,
        )

    def compare(self, query: QueryEncoding, supports: Sequence[SupportEncoding]) -> Output:
        """One query with B supports: whatever ways and shots they stand for."""
        return self.pairs([query] * len(supports), supports)

    def pairs(self, queries: Sequence[QueryEncoding], supports: Sequence[SupportEncoding]) -> Output:
        """B queries, all of one grid, each with its own support."""
        return self._heads([self._pair(*pair) for pair in zip(queries, supports, strict=True)], queries[0].grid)

    def forward(
        self,
        query: Tensor,
        support: Tensor,
        masks: Tensor,
        *,
        query_grid: Grid | None = None,
        support_grid: Grid | None = None,
    ) -> Output:
        """B pairs: query tokens (B, C, 1 + T, d), support tokens (B, C, 1 + T', d) and support masks (B, H, W).

        Grids (rows, columns) are needed only where the photos were not square.
        """
        self._check(query, support, masks)
        pairs = []
        for query_tokens, support_tokens, mask in zip(query, support, masks, strict=True):
            encoding = self.encode_query(query_tokens, query_grid)
            pairs.append(self._pair(encoding, self.encode_support(support_tokens, mask, support_grid)))
        return self._heads(pairs, encoding.grid)

    def _pair(self, query: QueryEncoding, support: SupportEncoding) -> Tensor | None:
        """(E, t_q, 2) - class token's and image tokens' result - or None if the support shows nothing to look at."""
        if support.sees_nothing:
            return None
        first, second = (cast(AttentionLayer, layer) for layer in self.corrtransformer)
        dtype = compute_dtype(self._parameter())
        with without_autocast(query.tokens.device):
            x = first.from_correlation(query.to(dtype), support.to(dtype))
            return cast(Tensor, second(x, support.kept_later))

    def _heads(self, pairs: Sequence[Tensor | None], grid: Grid) -> Output:
        seen = [index for index, pair in enumerate(pairs) if pair is not None]
        size = (len(pairs), 2, 2 * grid[0], 2 * grid[1])
        nothing = self._parameter().new_tensor(NO_FOREGROUND)[None, :, None, None]
        masks = nothing.expand(size)
        if not seen:
            return Output(None, masks.clone())
        x = self.linear(torch.stack([pair for pair in pairs if pair is not None]))  # (B, E, t_q, 2)
        x = x.unflatten(2, grid)
        found = mask_logits((self.decoder1_seg, self.decoder2_seg), x[..., -1])
        masks = found if len(seen) == len(pairs) else masks.to(found.dtype).index_copy(0, _index(seen, found), found)
        if not self.form.class_token:
            return Output(None, masks)
        return Output(presence_logits((self.decoder1_cls, self.decoder2_cls), x[..., 0]), masks)

    def _parameter(self) -> Tensor:
        return next(self.parameters())

    def _in_own_precision(self, tokens: Tensor) -> Tensor:
        """Tokens may come as float16 from a cache; what is no number at all is left for the check that names it."""
        return tokens.to(self._parameter().dtype) if tokens.is_floating_point() else tokens

    def _check(self, query: Tensor, support: Tensor, masks: Tensor) -> None:
        for tokens, role in ((query, "query"), (support, "support")):
            if tokens.ndim != 4:
                raise EmatError(
                    f"{role} tokens must have shape (batch, channels, 1 + patches, width), "
                    f"these have {tuple(tokens.shape)}"
                )
            self._check_channels(tokens, dim=1)
        if query.shape[3] != support.shape[3]:
            raise EmatError(
                f"query tokens are {query.shape[3]} wide and support tokens {support.shape[3]}; "
                "use one backbone for both"
            )
        if masks.ndim != 3:
            raise EmatError(f"support masks must have shape (batch, height, width), these have {tuple(masks.shape)}")
        if not len(query) == len(support) == len(masks) > 0:
            raise EmatError(
                f"{len(query)} queries, {len(support)} supports and {len(masks)} masks are no batch; "
                "give as many of each, at least one"
            )

    def _check_channels(self, tokens: Tensor, dim: int) -> None:
        if tokens.ndim > dim and tokens.shape[dim] != self.channels:
            raise EmatError(
                f"this {self.method} network compares {self.channels} channels, the tokens have {tokens.shape[dim]}; "
                "use the backbone it was built for"
            )


def _index(values: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device)


def build(method: str, channels: int) -> Network:
    """A new network: "emat", "emat-s" (segmentation only), "cst", "cst-large"; ablations "emat-me", "emat-me-ld".

    `channels` is the backbone's number of correlation channels, 72 for DINOv2 ViT-S.

    >>> sum(p.numel() for p in build("emat", channels=72).parameters())
    86020
    """
    if method not in FORMS:
        raise EmatError(f"there is no method {method!r}; choose one of {', '.join(FORMS)}")
    if channels < 1:
        raise EmatError(f"a network needs at least 1 correlation channel, not {channels}")
    return Network(method, channels)
