"""From coarse probability maps to crisp masks and single objects.

`refiner` decides how each class is refined and does it: along the photo's edges, or with MobileSAM. MobileSAM's network
is `mobilesam`, made of `backbone/tiny_vit` (encoder) and `mask_decoder` (prompts and decoder). `regions` cuts a map
into the regions that it is asked about, and `candidates` chooses between its answers.

`objects` works on finished masks: it removes thin rims of a wrong class and numbers single objects. `click` returns the
mask of an object that a user clicked.
"""
