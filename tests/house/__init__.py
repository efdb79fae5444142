"""Rules of the test runs themselves: durations, shards and seeds."""
