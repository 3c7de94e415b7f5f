import torch
from hypothesis import given
from hypothesis import strategies as st

from emat.backbone.tokens import stack_tokens, tokens_from_blocks, tokens_from_maps


@given(heads=st.integers(1, 6), depth=st.integers(1, 5), count=st.integers(1, 7), width=st.integers(1, 5))
def test_a_vit_channel_is_head_times_depth_plus_block(heads: int, depth: int, count: int, width: int) -> None:
    outputs = torch.randn(2, depth, count, heads * width)
    tokens = tokens_from_blocks(outputs, heads)
    assert tokens.shape == (2, heads * depth, count, width)
    for head in range(heads):
        for block in range(depth):
            expected = outputs[:, block, :, head * width : (head + 1) * width]
            assert torch.equal(tokens[:, head * depth + block], expected)


def test_a_cnn_map_on_the_grid_gives_its_features_in_row_major_order_after_their_mean() -> None:
    features = torch.randn(2, 6, 3, 4)
    tokens = tokens_from_maps([features], groups=[2], grid=(3, 4))
    assert tokens.shape == (2, 2, 13, 3)
    torch.testing.assert_close(tokens[:, 1, 0], features[:, 3:].mean(dim=(2, 3)))
    assert torch.equal(tokens[:, 0, 1 + 1 * 4 + 2], features[:, :3, 1, 2])


def test_narrower_groups_are_padded_with_zeros_which_changes_no_cosine() -> None:
    wide, narrow = torch.randn(1, 8, 2, 2), torch.randn(1, 5, 2, 2)
    tokens = tokens_from_maps([wide, narrow], groups=[1, 1], grid=(2, 2))
    assert torch.equal(tokens[:, 1, :, 5:], torch.zeros(1, 5, 3))
    alone = tokens_from_maps([narrow], groups=[1], grid=(2, 2))
    cosine = torch.nn.functional.cosine_similarity
    torch.testing.assert_close(cosine(tokens[0, 1, 1], tokens[0, 1, 2], 0), cosine(alone[0, 0, 1], alone[0, 0, 2], 0))


def test_uneven_groups_lose_no_feature() -> None:
    features = torch.randn(1, 352, 1, 1)
    tokens = tokens_from_maps([features], groups=[6], grid=(1, 1))
    assert tokens.shape == (1, 6, 2, 59)
    assert torch.equal(tokens[0, :, 1][tokens[0, :, 1] != 0], features.flatten())


def test_coarser_maps_are_resized_and_their_class_token_is_the_mean_before_that() -> None:
    features = torch.randn(1, 2, 2, 3)
    tokens = tokens_from_maps([features], groups=[1], grid=(4, 6))
    torch.testing.assert_close(tokens[0, 0, 0], features.mean(dim=(2, 3))[0])
    resized = torch.nn.functional.interpolate(features, size=(4, 6), mode="bilinear", align_corners=False)
    torch.testing.assert_close(tokens[0, 0, 1:].T, resized[0].flatten(1))


def test_stacking_concatenates_channels_on_one_grid_and_one_width() -> None:
    fine, coarse = torch.randn(2, 3, 1 + 16, 5), torch.randn(2, 2, 1 + 4, 7)
    tokens = stack_tokens([fine, coarse], [(4, 4), (2, 2)], grid=(4, 4))
    assert tokens.shape == (2, 5, 17, 7)
    assert torch.equal(tokens[:, :3, :, :5], fine)
    assert torch.equal(tokens[:, 3:, 0], coarse[:, :, 0])
    torch.testing.assert_close(tokens[:, 3:, 1], coarse[:, :, 1])  # a corner stays what it was
