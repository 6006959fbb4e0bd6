"""Reports, rendered from the plain data of a run."""
