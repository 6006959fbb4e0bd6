"""The page that shows the OpenAPI document: no script or style but its own."""
