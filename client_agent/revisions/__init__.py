"""Keep each kept state as a numbered revision, and put revisions where a server reads them."""
