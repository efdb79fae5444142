"""Names that people give: their normal form, their allowed characters, and whether two of them look alike."""
