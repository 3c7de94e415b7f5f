"""Annotation formats, read and written: COCO, LabelMe, YOLO and PNG masks.

Each of `coco`, `labelme`, `yolo` and `png` reads and writes one format. What they read becomes a `drawing`, which fills
its polygons and makes a label map. What they write starts from a label map (`writing`), whose outlines are traced in
`regions`; `results` writes several formats in one run. `run_lengths` are COCO's compressed masks, `class_names` the
names beside the masks, and `table` the CSV file of single objects.
"""
