"""Few-shot methods: from the features of photos to the classes in a query.

The interface is `base`, the list of all methods `registry`, and the rule that decides the class of a pixel `label_map`.

The methods: `correlation` (EMAT and CST, whose network is `emat.model`), `prior` (EMAT averaged with the prototype),
`prototype` (needs no training), and `panet`, `pfenet`, `hsnet`, `asnet`, which share `resnet_base`.

Trained heads: `trained_head` (what a file holds and where it is found), `head_training` (what it was trained on),
`published` (the authors' checkpoints).

Learning from a user's examples: `with_learner` wraps a method, `pixel_features` and `learner` are the pixel classifier,
`leave_out` tries it on examples that are left out, and `mixture` decides how much it counts beside the head.
"""
