import torch

from emat.methods.matcher import matched_patches
from tests.methods.coloured import BLUE, GREY, RED, picture, support_of


def test_each_patch_of_the_class_takes_another_patch_of_the_query() -> None:
    image = picture(RED, slice(0, 1), slice(0, 2))
    support = support_of(image, image[..., 0])
    query = torch.tensor([GREY, RED, RED, GREY, RED])
    assert len(matched_patches(query, support)) == 2
    assert set(matched_patches(query, support).tolist()) <= {1, 2, 4}


def test_a_match_that_does_not_lead_back_is_dropped() -> None:
    image = picture(RED, slice(0, 1), slice(0, 3))
    support = support_of(image, image[..., 0])
    # The class has three patches and the query one; the other two are assigned to what looks like background.
    assert matched_patches(torch.tensor([GREY, GREY, RED, GREY]), support).tolist() == [2]


def test_a_query_of_another_kind_has_few_matches() -> None:
    image = picture(RED, slice(0, 1), slice(0, 2))
    support = support_of(image, image[..., 0])
    blueish = torch.nn.functional.normalize(torch.tensor(BLUE) + 0.1 * torch.tensor(GREY), dim=0)
    assert matched_patches(blueish.expand(6, 3), support).tolist() == []
