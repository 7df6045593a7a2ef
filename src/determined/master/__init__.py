"""The master: what was submitted, what is wanted, what is true, and the rounds that make the one match the other."""
