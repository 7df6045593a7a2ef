"""Revisions of the tables. A released one is never edited; the newest leaves what ``tables.py`` says."""
