"""Pictures of masks, predictions and tasks, drawn with Pillow."""
