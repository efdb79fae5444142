"""The report of a comparison: statistics, tables, charts and an HTML page."""
