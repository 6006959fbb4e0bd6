"""The page of search: its files, and the routes behind it."""
