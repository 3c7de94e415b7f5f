"""The demonstration: two examples are shown, three other photos are predicted, a picture and a page tell the rest."""
