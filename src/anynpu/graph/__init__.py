"""What a model is: simplification, static shapes, layouts, cost, fingerprint, degenerate outputs."""
