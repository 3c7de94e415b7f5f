"""The web page on this machine: name classes, paint examples, get masks on other photos.

networks.py   the network that all tabs share, and the features it has computed
session.py    what one tab has shown and asked
photos.py     photos as they are dropped on the page
painting.py   paint in the editor <-> masks
answers.py    predictions and corrections -> label maps, at any threshold
actions.py    what the buttons do; knows nothing of the page
export.py     masks in a zip
cards.py      what the page shows of a session, as HTML
page.py       the components and their places
events.py     which component starts which action
server.py     serving it on 127.0.0.1
"""
