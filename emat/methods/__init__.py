"""Few-shot methods: from the features of photos to the classes in a query.

The interface is `base`, the list of all methods `registry`, and the rule that decides the class of a pixel `label_map`.

The methods: `correlation` (EMAT and CST, whose network is `emat.model`), `prior` (EMAT averaged with the prototype),
and `panet`, `pfenet`, `hsnet`, `asnet`, which share `resnet_base`. Methods without training share `training_free`:
`prototype`, `promi`, `whitened`, `frost` and `insid3`; those that prompt MobileSAM also share `prompted`: `persam`,
`matcher` and `gf_sam`.

`trained_head` says what the file of a trained head holds, where it is found, how checkpoints are imported, and what a
head was trained on.
"""
