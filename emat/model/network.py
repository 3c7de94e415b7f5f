"""The network of EMAT, CST and the steps between them, which differ only in their sizes (`FORMS`)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from emat.device import compute_dtype, without_autocast
from emat.errors import EmatError
from emat.model.encoding import (
    Grid,
    QueryEncoding,
    SupportEncoding,
    Window,
    check_grid,
    encode_query,
    encode_support,
)
from emat.model.group_norm import NORM_GROUPS
from emat.model.layers import (
    AttentionLayer,
    mask_branch,
    mask_branch_stages,
    presence_branch,
    presence_branch_stages,
)
from emat.tensor_files import misfits, shapes_of

WIDTH_MULTIPLE = 16  # eight attention heads share half of a layer's width
NO_FOREGROUND = (10.0, -10.0)  # mask logits where no support token is left to look at: a certain background
PUBLIC_PREFIX = "learner."  # what public checkpoints put before the names of the network's tensors


@dataclass(frozen=True)
class Form:
    """What distinguishes the members of the family (paper, Sec. 4 and Tab. 3)."""

    support_grid: int  # side; t_s = side² + 1
    windows: tuple[Window, Window]  # downscaling of the two layers
    widths: tuple[int, int]  # of the two layers' outputs; the branches use the second and its half
    class_token: bool = True


@dataclass(frozen=True)
class Shape:
    """Sizes of a network that may differ from the published ones; None keeps the size of its form.

    A backbone with few tokens gains nothing from a support grid that is finer than its own, and every halving of the
    grid's side makes the network about four times as fast.
    """

    support_grid: int | None = None  # side
    widths: tuple[int, int] | None = None  # of the two layers' outputs
    channels: tuple[int, int] | None = None  # of the backbone's channels: the first, and the one after the last

    def applied_to(self, form: Form) -> Form:
        """Return `form` with these sizes.

        Raises:
            EmatError: If the grid cannot be cut into the form's windows, or a width into attention heads.
        """
        first, second = form.windows
        side = form.support_grid if self.support_grid is None else self.support_grid
        pool, rest = divmod(side, first.side * second.stride)
        if pool < 1 or rest:
            raise EmatError(
                "bad-number",
                f"a support grid of {side} x {side} does not fit this network; its side must be a multiple of "
                f"{first.side * second.stride}",
            )
        widths = self.widths or form.widths
        if any(width < WIDTH_MULTIPLE or width % WIDTH_MULTIPLE for width in widths):
            raise EmatError(
                "bad-number", f"widths are {widths[0]} and {widths[1]}; both must be multiples of {WIDTH_MULTIPLE}"
            )
        return Form(side, (first, Window(second.stride, pool)), widths, form.class_token)


PUBLISHED_SHAPE = Shape()
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
    """Computes presence and mask logits from the tokens of query and support photos and the support masks.

    >>> net = build("emat", channels=12)
    >>> tokens, masks = torch.randn(2, 12, 1 + 36, 16), torch.ones(2, 50, 50)
    >>> out = net(tokens, tokens, masks)
    >>> out.presence.shape, out.masks.shape
    (torch.Size([2, 2]), torch.Size([2, 2, 12, 12]))
    """

    def __init__(self, method: str, channels: int, shape: Shape | None = None) -> None:
        super().__init__()
        self.method, self.channels, self.shape = method, channels, shape or Shape()
        self.form = self.shape.applied_to(FORMS[method])
        first, second = self.form.widths
        class_token = self.form.class_token
        # Attributes have the names of published checkpoints, so that their state dicts can be loaded as they are.
        self.corrtransformer = nn.ModuleList(
            [
                AttentionLayer(channels, first, self.form.windows[0], class_token=class_token),
                AttentionLayer(first, second, self.form.windows[1], class_token=class_token),
            ]
        )
        blocks = [(nn.Conv2d(second, second, 1), nn.GroupNorm(NORM_GROUPS, second), nn.ReLU()) for _ in range(2)]
        self.linear = nn.Sequential(*blocks[0], *blocks[1])
        self.decoder1_seg, self.decoder2_seg = mask_branch_stages(second)
        if class_token:
            self.decoder1_cls, self.decoder2_cls = presence_branch_stages(second)

    def encode_query(self, tokens: Tensor, grid: Grid | None = None) -> QueryEncoding:
        """Encode a query photo, once for all supports.

        Args:
            tokens: The backbone's tokens (C, 1 + T, d) of the photo.
            grid: Rows and columns of the T patch tokens; a square if it is None.

        Returns:
            The encoding, for `compare` and `pairs`.

        Raises:
            EmatError: The tokens have another shape or number of channels, hold NaN, or do not fit the grid.
        """
        self._check_channels(tokens, dim=0)
        return encode_query(self._in_own_precision(tokens), grid)

    def encode_support(self, tokens: Tensor, mask: Tensor, grid: Grid | None = None) -> SupportEncoding:
        """Encode a support photo with the mask of one class, once for all queries.

        Args:
            tokens: The backbone's tokens (C, 1 + T, d) of the photo.
            mask: (H, W), of any size and type; values above 0 are the class.
            grid: Rows and columns of the T patch tokens; a square if it is None.

        Returns:
            The encoding, for `compare` and `pairs`.

        Raises:
            EmatError: Tokens or mask have another shape, or the tokens hold NaN or do not fit the network or the grid.
        """
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
        """Compare one query with B supports, whatever ways and shots they belong to.

        Args:
            query: What `encode_query` returned.
            supports: What `encode_support` returned, at least one.

        Returns:
            The logits of each support, in order. No support influences another's.
        """
        return self.pairs([query] * len(supports), supports)

    def pairs(self, queries: Sequence[QueryEncoding], supports: Sequence[SupportEncoding]) -> Output:
        """Compare B queries, all of one grid, each with its own support.

        Args:
            queries: What `encode_query` returned, at least one.
            supports: What `encode_support` returned, one for each query.

        Returns:
            The logits of each pair, in order.
        """
        return self._compare(zip(queries, supports, strict=True), queries[0].grid)

    def forward(
        self,
        query: Tensor,
        support: Tensor,
        masks: Tensor,
        *,
        query_grid: Grid | None = None,
        support_grid: Grid | None = None,
    ) -> Output:
        """Compare B pairs of photos.

        Args:
            query: Query tokens (B, C, 1 + T, d).
            support: Support tokens (B, C, 1 + T', d).
            masks: Support masks (B, H, W); values above 0 are the class.
            query_grid: Rows and columns of the query's patch tokens; a square if it is None.
            support_grid: The same of the support's.

        Returns:
            The logits of each pair, in order.

        Raises:
            EmatError: A tensor's shape does not fit the network or the others, or tokens hold NaN.
        """
        self._check(query, support, masks)
        encoded = (  # one pair at a time, so that without gradients only one is in memory
            (self.encode_query(query_tokens, query_grid), self.encode_support(support_tokens, mask, support_grid))
            for query_tokens, support_tokens, mask in zip(query, support, masks, strict=True)
        )
        return self._compare(encoded, check_grid(query[0], query_grid, "query"))

    def _compare(self, pairs: Iterable[tuple[QueryEncoding, SupportEncoding]], grid: Grid) -> Output:
        """Go through both attention layers and the two branches.

        Up to the second layer's attention, pairs are large and differ in size, so they are computed one by one. From
        the end of the second layer on, they are computed together.
        """
        first, second = (cast(AttentionLayer, layer) for layer in self.corrtransformer)
        dtype = compute_dtype(self._parameter())
        visible: list[bool] = []  # for each pair, whether its support has a token to look at
        attended, residuals = [], []
        with without_autocast(self._parameter().device):
            first_projections, second_projections = first.projections().to(dtype), second.projections()
            for query, support in pairs:
                visible.append(not support.sees_nothing)
                if visible[-1]:
                    x = first.from_correlation(query.to(dtype), support.to(dtype), first_projections)
                    values, residual = second.attend(x, support.kept_later, second_projections)
                    attended.append(values)
                    residuals.append(residual)
            if not attended:
                return Output(None, self._no_foreground(len(visible), grid))
            x = second.post_attention_(torch.stack(attended), torch.stack(residuals))  # (B, E, t_q, 2)
        x = self.linear(x).unflatten(2, grid)  # (B, E, h, w, 2): the class token's result, then the image tokens'
        masks = mask_branch((self.decoder1_seg, self.decoder2_seg), x[..., -1])
        if not all(visible):
            indices = torch.tensor(visible, device=masks.device).nonzero().squeeze(1)
            masks = self._no_foreground(len(visible), grid).to(masks.dtype).index_copy(0, indices, masks)
        if not self.form.class_token:
            return Output(None, masks)
        return Output(presence_branch((self.decoder1_cls, self.decoder2_cls), x[..., 0]), masks)

    def _no_foreground(self, pairs: int, grid: Grid) -> Tensor:
        """Mask logits (B, 2, 2h, 2w) of a certain background."""
        logits = self._parameter().new_tensor(NO_FOREGROUND)[None, :, None, None]
        return logits.repeat(pairs, 1, 2 * grid[0], 2 * grid[1])

    def _parameter(self) -> Tensor:
        return next(self.parameters())

    def _in_own_precision(self, tokens: Tensor) -> Tensor:
        """Return tokens, which may be float16 from a cache, in the network's precision.

        Integers stay as they are, so that the check of the encoding reports them.
        """
        return tokens.to(self._parameter().dtype) if tokens.is_floating_point() else tokens

    def _check(self, query: Tensor, support: Tensor, masks: Tensor) -> None:
        for tokens, role in ((query, "query"), (support, "support")):
            if tokens.ndim != 4:
                raise EmatError(
                    "tensor-shape",
                    f"{role} tokens must have shape (batch, channels, 1 + patches, width), "
                    f"these have {tuple(tokens.shape)}",
                )
            self._check_channels(tokens, dim=1)
        if query.shape[3] != support.shape[3]:
            raise EmatError(
                "wrong-backbone",
                f"query tokens are {query.shape[3]} wide and support tokens {support.shape[3]}; "
                "use one backbone for both",
            )
        if masks.ndim != 3:
            raise EmatError(
                "mask-shape", f"support masks must have shape (batch, height, width), these have {tuple(masks.shape)}"
            )
        if not len(query) == len(support) == len(masks) > 0:
            raise EmatError(
                "tensor-shape",
                f"{len(query)} queries, {len(support)} supports and {len(masks)} masks are not a batch; "
                "pass as many of each, at least one",
            )

    def _check_channels(self, tokens: Tensor, dim: int) -> None:
        if tokens.ndim > dim and tokens.shape[dim] != self.channels:
            raise EmatError(
                "wrong-backbone",
                f"this {self.method} network compares {self.channels} channels, the tokens have {tokens.shape[dim]}; "
                "use the backbone it was built for",
            )


def build(method: str, channels: int, shape: Shape | None = None) -> Network:
    """Build a network with random weights.

    Args:
        method: "emat", "emat-s" (segmentation only), "cst", "cst-large"; ablations "emat-me", "emat-me-ld".
        channels: The number of correlation channels that it compares, 72 for DINOv2 ViT-S.
        shape: Sizes that differ from the published ones; by default none.

    Raises:
        EmatError: If there is no such method, or a size does not fit it.

    >>> sum(p.numel() for p in build("emat", channels=72).parameters())
    86020
    """
    if method not in FORMS:
        raise EmatError("unknown-method", f"there is no method {method!r}; choose one of {', '.join(FORMS)}")
    if channels < 1:
        raise EmatError("bad-number", f"a network needs at least 1 correlation channel, not {channels}")
    return Network(method, channels, shape)


def load_public(net: Network, tensors: Mapping[str, Tensor]) -> None:
    """Load the weights of a public checkpoint into `net`.

    Args:
        net: What `build` returned.
        tensors: {"corrtransformer.0...": Tensor}, with or without the prefix "learner."; with it, other tensors of
            the checkpoint are ignored.

    Raises:
        EmatError: If a name or shape does not fit; the message lists them, and nothing is loaded.
    """
    own, given = net.state_dict(), without_prefix(tensors)
    if wrong := misfits(shapes_of(given), shapes_of(own)):
        raise EmatError(
            "weights-do-not-fit", f"these tensors are not a {net.method} head with {net.channels} channels: {wrong}"
        )
    net.load_state_dict({name: value.to(own[name].dtype) for name, value in given.items()})


def without_prefix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the network's tensors in a checkpoint without their prefix; all tensors if none has the prefix."""
    start = PUBLIC_PREFIX
    prefixed = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
    return prefixed or dict(tensors)
