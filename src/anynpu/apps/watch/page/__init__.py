"""The fleet page: one HTML file, one style sheet, one script; nothing from elsewhere."""
