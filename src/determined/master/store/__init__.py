"""All SQL. One file for each noun: named reads and changes, each a plain function that takes a transaction."""
