"""Reading and writing the annotation formats: COCO, LabelMe, YOLO and PNG masks."""
