"""The studio, a web page on the user's own machine: name classes, mark examples, get masks on other photos.

The way of the data: a file that is dropped on the page arrives at `routes` and becomes a `StudioPhoto` in the session's
folder. It is painted in `page/editor.js`, comes back as a PNG of class numbers, and becomes an example of the session's
segmenter. A thread (`search`) learns and predicts; the page asks for the session's state until it is done.

photos.py        photos that were dropped, and the paint on them
session.py       what one tab of the browser holds; photos, paint and probability maps are files
session_json.py  a session as JSON: for the page, and saved on disk
sessions.py      the sessions of all tabs, and the methods and features that they share
examples.py      classes, drafts, examples and corrections
stacks.py        stacks and videos that are dropped, of which the user chooses planes
dropped.py       photos, masks and annotation files that are dropped together
proposals.py     objects that look like what is painted so far
history.py       one step back, and what the last change did to the other photos
search.py        learning and predicting in the background
uncertainty.py   how unsure a prediction is, and where a label would teach most
masks.py         label maps, measurements and pictures at any threshold
tracks.py        objects that keep their numbers through the frames of a video
measuring.py     numbers with units, shares, verdicts and the report, by `emat.measure`
export.py        one zip file with everything
actions.py       what buttons and clicks do
routes.py        the addresses and what each answers
words.py         errors as the page says them
security.py      which requests are accepted
server.py        the server on 127.0.0.1
page/            the page: HTML, style and plain JavaScript, without a build step
"""
