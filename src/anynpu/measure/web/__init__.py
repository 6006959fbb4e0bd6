"""A server measured from outside, over HTTP."""
