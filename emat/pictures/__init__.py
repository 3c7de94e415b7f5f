"""Pictures for people, drawn with Pillow.

`overlay` draws masks over a photo, and pages of many small overlays. `task` draws a few-shot task, and `demo` draws the
result of `emat demo`. Their colours are in `palette`.
"""
