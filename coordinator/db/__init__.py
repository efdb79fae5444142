"""The database: engine, clock, locks, migrations, tables."""
