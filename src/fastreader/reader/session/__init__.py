"""Readers that keep keys and values between calls: sessions of prefixes, and readers with a cache of passages."""

from fastreader.reader.session.passages import PassageReader as PassageReader
from fastreader.reader.session.session import Session as Session
from fastreader.reader.session.session import open_session as open_session
