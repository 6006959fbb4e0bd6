"""Scripts that run inside a vendor's environment: they import that vendor's packages, numpy and nothing of anynpu."""
