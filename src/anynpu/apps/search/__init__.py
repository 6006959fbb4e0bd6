"""Search in the user's own pictures and documents: an index that follows a folder, questions, and a page."""
