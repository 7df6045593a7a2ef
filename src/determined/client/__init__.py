"""The only client of the master's API: a session, one typed method for each route, and handles on top of them."""
