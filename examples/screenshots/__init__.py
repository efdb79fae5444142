"""`make screenshots`: pictures of the dashboard page for docs/images, from real federations in Chromium."""
