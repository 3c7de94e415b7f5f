"""The studio, a web page on the user's own machine: name classes, mark examples, get masks on other photos.

The way of the data: a file that is dropped on the page arrives at `routes`, becomes a `StudioPhoto` in the session's
folder, is painted in `page/editor.js`, comes back as a PNG of class numbers (`paint`), and becomes an example of the
session's segmenter. A thread (`search`) learns and predicts; the page asks for the session's `state` until it is done.

photos.py          photos that were dropped, kept as files
paint.py           what the editor sends, and the masks it stands for
session.py         what one tab of the browser holds
kept_maps.py       probability maps of predictions, kept as files
kept_sessions.py   sessions on disk, for reloads and restarts
sessions.py        the sessions of all tabs
shared_methods.py  the methods and features that all tabs share
examples.py        classes, drafts and examples
dropped.py         photos, masks and annotation files that are dropped together
clicks.py          click-to-mask, by MobileSAM
search.py          learning and predicting in the background; how unsure a prediction is
corrections.py     thresholds and corrections
masks.py           label maps and measurements at any threshold
pictures.py        photos with their masks
export.py          one zip file with everything
state.py           a session as JSON
acts.py            what the buttons do
routes.py          the addresses and what each answers
security.py        who may ask, and how much they may send
server.py          the server on 127.0.0.1
page/              the page: HTML, style and plain JavaScript, without a build step
"""
