"""The report of a comparison: figures, tables, charts and the page around them."""
