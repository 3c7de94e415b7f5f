"""Sentences as the page says them: errors name what one can do here, not options of the command line."""

from emat.errors import EmatError

# What to do on the page, by the codes of errors whose own advice is for the command line.
ADVICE = {
    "photo-too-large": "make it smaller, or cut it into parts, and drop it again",
    "several-pages": "save the page that you want as a photo of its own, and drop that",
    "unknown-range": "save it with 8 bits, and drop it again",
    "bad-number": "choose another value",
    "needs-learning": "paint the whole photo, because this segmenter does not learn from strokes",
    "missing-package": "save it as PNG or JPEG, and drop it again",
}


def page_sentence(error: EmatError) -> str:
    """Return what an error says, with advice that fits the page.

    >>> page_sentence(EmatError("photo-too-large", "a.png has 9 pixels; allow more with --max-pixels"))
    'a.png has 9 pixels; make it smaller, or cut it into parts, and drop it again'
    """
    text = str(error)
    if " --" in text and error.code in ADVICE:
        text = f"{text.partition(';')[0]}; {ADVICE[error.code]}"
    return sentence(text)


def sentence(text: str) -> str:
    """Let a sentence begin with a capital letter, unless it begins with the name of a file, which keeps its letters.

    >>> sentence("nothing is painted yet"), sentence("a.png is no photo")
    ('Nothing is painted yet', 'a.png is no photo')
    """
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text
