"""Makes the world match the rows: starts what is assigned, stops what is to stop, records what has ended."""
