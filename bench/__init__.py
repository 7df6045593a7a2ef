"""Measurements of Resolute beside its peers, on your machine, in one run: ``python -m bench`` or ``make bench``."""
