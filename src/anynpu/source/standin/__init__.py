"""Modules that stand in for a vendor's training packages where those are not installed.

A folder of files, not a package to import: `torch_module.py` puts it at the end of the import path while a user's
model is loaded, so that `import ai8x` finds the vendor's own first.
"""
