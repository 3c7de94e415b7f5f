"""The studio, a web page on the user's own machine: name classes, paint examples, get masks on other photos.

session.py    what one tab of the browser holds, and the methods that all tabs share
photos.py     photos that were dropped on the page; paint in the editors and the masks it stands for
masks.py      label maps from predictions and corrections at any threshold, and their export
actions.py    what the buttons do to a session, without any knowledge of the page
cards.py      a session as HTML
page.py       the components of the page
editors.py    the photos and the paint in the two editors
events.py     which component starts which action
server.py     the server on 127.0.0.1
"""
