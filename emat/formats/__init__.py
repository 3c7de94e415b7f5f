"""Annotation formats, read and written: COCO, LabelMe, YOLO and PNG masks.

Each of `coco`, `labelme` and `yolo` reads and writes one format. What they read becomes a `drawing`, which fills its
polygons and makes a label map. Writing starts from a label map: `writing` has the interface of all writers and the
simplest of them, for indexed PNG, and `results` runs several writers and CSV tables for one folder. `regions` traces
the outlines of a label map, `run_lengths` are COCO's compressed masks, and `class_names` reads the lists of classes.
"""
