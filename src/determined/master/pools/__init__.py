"""Places that run gangs."""
