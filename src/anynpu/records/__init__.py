"""Records: what verbs print as JSON, write to files and make reports of."""
