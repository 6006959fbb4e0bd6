"""Configuration files for the Vela compiler."""
