"""The Toychip: a sample plug-in for anynpu."""
