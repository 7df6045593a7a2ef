"""Every legal change to a row, each a plain function of a transaction."""
