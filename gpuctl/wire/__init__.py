"""The words that both sides speak: what the controller sends and what a node writes and answers.

Dataclasses with one JSON form each, no dependency, no I/O. Everything below this package's floor runs on Python 3.8.
`VERSION` rises when a word changes its meaning; readers ignore keys that they do not know, so adding one is no change.
"""

VERSION = 1
END = {"end": True}
"""A stream's last line: what was asked for is complete. One that stops without it was cut."""
