"""The Python API: what `import anynpu` offers. The command line is a layer on it, with the same words."""
