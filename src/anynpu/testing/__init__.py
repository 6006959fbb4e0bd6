"""For authors of plug-ins: the contract of targets, sessions and platforms as checks, and small models to run them."""
