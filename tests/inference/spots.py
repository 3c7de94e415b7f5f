"""Examples that are learnt at once: red spots on a noisy grey ground."""

import numpy as np

from emat import Example

HEIGHT, WIDTH, SPOTS, HALF = 48, 64, 9, 3


def spot_examples(*seeds: int) -> list[Example]:
    """An example of the class "spot" for each seed."""
    examples = []
    for seed in seeds:
        draw = np.random.RandomState(seed)
        photo = draw.randint(90, 130, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        mask = np.zeros((HEIGHT, WIDTH), bool)
        for y, x in zip(draw.randint(4, HEIGHT - 4, SPOTS), draw.randint(4, WIDTH - 4, SPOTS), strict=True):
            mask[y - HALF : y + HALF, x - HALF : x + HALF] = True
        photo[mask] = (200, 60, 50)
        examples.append(Example(photo, {"spot": mask}, name=f"photo {seed}"))
    return examples
