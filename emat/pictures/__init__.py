"""Pictures for people, drawn with Pillow.

`overlay` draws masks over a photo, `contact_sheet` pages of many small overlays, `task` a few-shot task, and `demo` the
result of `emat demo`. Their colours are in `palette`.
"""
