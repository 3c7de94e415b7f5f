"""From coarse probability maps to crisp masks and single objects.

`refiner` decides how each class is refined and does it: along the photo's edges (`guided`), or with MobileSAM.
MobileSAM's network is `mobilesam`, made of `tiny_vit` (encoder) and `mask_decoder` (prompts and decoder). `regions`
cuts a map into the regions that it is asked about, and `candidates` chooses between its answers.

`fringes` and `instances` work on finished masks: the first removes thin rims of a wrong class, the second numbers
single objects. `click` returns the mask of an object that a user clicked.
"""
