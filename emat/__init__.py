"""Few-shot classification and segmentation with the Efficient Masked Attention Transformer (EMAT).

Letters used for shapes everywhere in the package:

=====  =======================================================================================
B      pairs of (query image, support image with one class's mask) in a batch
C      correlation channels: (head, block) of a ViT, (group, block) of a CNN
T      patch tokens of an image, ``h * w`` of its grid; the class token is not counted
d      width of one token in one channel
t_q    query tokens of a pair, the T of the query image
t_s    support tokens of a pair: 1 class token + grid² image tokens, as the paper counts them
t_d    support tokens after a layer's downscaling
E      channels of an attention layer's output; its hidden width is E / 2, split into 8 heads
=====  =======================================================================================
"""

__version__ = "0.1.0"
