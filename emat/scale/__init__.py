"""Beyond one process: many photos on many machines, segmenters as ONNX graphs, and predictions over HTTP."""
