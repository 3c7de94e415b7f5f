"""EMAT's and CST's network: masked attention over support tokens, for every query token.

`network` joins the parts and lists the sizes of EMAT, CST and the steps between. `encoding` makes query and support
comparable. `layers` has the attention layer, of which there are two, and the two branches that follow. In an attention
layer, `projections` makes queries, keys and values, `attention` is the paper's Eq. 6, and `post_attention` with its
`group_norm` is what comes after it. `plain` computes the same in plain steps, for tests, comparisons and exports.

Letters in shapes, the same in every module (sizes of the paper's EMAT in brackets):

| letter | meaning |
|---|---|
| B | pairs of a query and a support |
| C | channels that a layer takes: the backbone's correlation channels [72] in the first layer, then the first's width |
| d | width of a token in one channel [64] |
| T | patch tokens of a photo; a class token comes before them |
| t_q | query tokens [2500 = 50 x 50]; n of them make a chunk |
| t_s | support tokens at a layer's support grid, with the class token [401, then 101] |
| t_d | support tokens after the layer's downscaling, with the class token [101, then 2] |
| k | support tokens that the mask keeps as keys and values, with the class token (in `attend`, t) |
| P | positions inside a cell that have weights of their own [4]; n_cells cells share them |
| E | width of a layer's output [64, then 32] |
| H | width that attention works in, E / 2; each of the 8 attention heads has e = H / 8 |
| h, w | rows and columns of the query's grid |
"""

from emat.model.encoding import QueryEncoding, SupportEncoding
from emat.model.network import FORMS, Network, Output, Shape, build, load_public

__all__ = ["FORMS", "Network", "Output", "QueryEncoding", "Shape", "SupportEncoding", "build", "load_public"]
